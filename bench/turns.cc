
#include "bench/turns.h"

#include <algorithm>

#include "bench/ranks.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUpTurns = 2;

/// The times of a single call on a rank.
TurnTimes times_of(const TurnTime& time, const CollectiveStatistics& statistics) {
  return {.algorithm = statistics.algorithm,
          .seconds = time.whole,
          .part_seconds = time.part,
          .wire_bytes = statistics.sent_bytes,
          .wire_seconds = statistics.wire_seconds,
          .encode_seconds = statistics.encode_seconds,
          .decode_seconds = statistics.decode_seconds};
}

/// The number of iterations in about one second, at least 5 and at most 200.
std::size_t iterations_for(double seconds) {
  return static_cast<std::size_t>(std::clamp(1.0 / std::max(seconds, 1e-9), 5.0, 200.0));
}

/// The median over iterations of the maximum over ranks.
template <typename Value>
Value median_of(const std::vector<std::vector<TurnTimes>>& per_rank, Value TurnTimes::*field) {
  std::vector<std::vector<double>> values;
  for (const std::vector<TurnTimes>& calls : per_rank) {
    values.emplace_back();
    for (const TurnTimes& call : calls) values.back().push_back(static_cast<double>(call.*field));
  }
  return static_cast<Value>(median_of_slowest(values));
}

TurnTimes medians_of(const std::vector<std::vector<TurnTimes>>& per_rank, Algorithm algorithm) {
  TurnTimes medians{.algorithm = algorithm,
                    .wire_bytes = median_of(per_rank, &TurnTimes::wire_bytes)};
  for (const auto field : {&TurnTimes::seconds, &TurnTimes::part_seconds, &TurnTimes::wire_seconds,
                           &TurnTimes::encode_seconds, &TurnTimes::decode_seconds})
    medians.*field = median_of(per_rank, field);
  return medians;
}

}  // namespace

TurnTime time_turn(RankCall& caller, Rank& rank) {
  caller.restore();
  rank.meet();
  const TurnTime time = caller.time();
  if (caller.ends_together()) rank.meet();
  return time;
}

std::size_t warm_up(std::span<RankCall* const> callers, Rank& rank, std::size_t iterations) {
  double seconds = 0;
  for (int round = 0; round < kWarmUpTurns; ++round) {
    seconds = 0;
    for (RankCall* caller : callers) seconds += time_turn(*caller, rank).whole;
  }
  const double each = seconds / static_cast<double>(callers.size());
  return rank.from_first(iterations == 0 ? iterations_for(each) : iterations);
}

std::vector<TurnTimes> time_turns(std::span<RankCall* const> callers, Rank& rank,
                                  std::size_t iterations) {
  std::vector<std::vector<TurnTimes>> calls(callers.size());
  for (std::size_t i = 0; i < iterations; ++i)
    for (std::size_t which = 0; which < callers.size(); ++which) {
      const TurnTime time = time_turn(*callers[which], rank);
      calls[which].push_back(times_of(time, callers[which]->statistics()));
    }
  std::vector<TurnTimes> times;
  for (std::size_t which = 0; which < callers.size(); ++which)
    times.push_back(medians_of(rank.gather(std::span<const TurnTimes>(calls[which])),
                               callers[which]->statistics().algorithm));
  return times;
}

TurnTimes time_turns(RankCall& caller, Rank& rank, std::size_t iterations) {
  RankCall* const one[] = {&caller};
  return time_turns(one, rank, warm_up(one, rank, iterations)).front();
}

}  // namespace tersor::bench
