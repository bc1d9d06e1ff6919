// See turns.h.

#include "bench/turns.h"

#include <algorithm>

#include "bench/ranks.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUpTurns = 2;

/// One call of one rank; plain, so that ranks can gather it.
struct Call {
  double seconds, part_seconds, sent_bytes, wire_seconds, encode_seconds, decode_seconds;
};

Call call_of(const TurnTime& time, const CollectiveStatistics& statistics) {
  return {time.whole,
          time.part,
          static_cast<double>(statistics.sent_bytes),
          statistics.wire_seconds,
          statistics.encode_seconds,
          statistics.decode_seconds};
}

/// As many as fill about a second, but at least 5 and at most 200.
std::size_t iterations_for(double seconds) {
  return static_cast<std::size_t>(std::clamp(1.0 / std::max(seconds, 1e-9), 5.0, 200.0));
}

/// The median over iterations of the largest value over ranks.
double median_of(const std::vector<std::vector<Call>>& per_rank, double Call::*field) {
  std::vector<std::vector<double>> values;
  for (const std::vector<Call>& calls : per_rank) {
    values.emplace_back();
    for (const Call& call : calls) values.back().push_back(call.*field);
  }
  return median_of_slowest(values);
}

TurnTimes medians_of(const std::vector<std::vector<Call>>& per_rank, Algorithm algorithm) {
  const auto of = [&](double Call::*field) { return median_of(per_rank, field); };
  return {.algorithm = algorithm,
          .seconds = of(&Call::seconds),
          .part_seconds = of(&Call::part_seconds),
          .wire_bytes = static_cast<std::uint64_t>(of(&Call::sent_bytes)),
          .wire_seconds = of(&Call::wire_seconds),
          .encode_seconds = of(&Call::encode_seconds),
          .decode_seconds = of(&Call::decode_seconds)};
}

}  // namespace

TurnTime time_turn(TimedCall& caller, Rank& rank) {
  caller.restore();
  rank.meet();
  const TurnTime time = caller.time();
  if (caller.ends_together()) rank.meet();
  return time;
}

std::size_t warm_up(std::span<TimedCall* const> callers, Rank& rank, std::size_t iterations) {
  double seconds = 0;
  for (int round = 0; round < kWarmUpTurns; ++round) {
    seconds = 0;
    for (TimedCall* caller : callers) seconds += time_turn(*caller, rank).whole;
  }
  const double each = seconds / static_cast<double>(callers.size());
  return rank.from_first(iterations == 0 ? iterations_for(each) : iterations);
}

std::vector<TurnTimes> time_turns(std::span<TimedCall* const> callers, Rank& rank,
                                  std::size_t iterations) {
  std::vector<std::vector<Call>> calls(callers.size());
  for (std::size_t i = 0; i < iterations; ++i)
    for (std::size_t which = 0; which < callers.size(); ++which) {
      const TurnTime time = time_turn(*callers[which], rank);
      calls[which].push_back(call_of(time, callers[which]->statistics()));
    }
  std::vector<TurnTimes> times;
  for (std::size_t which = 0; which < callers.size(); ++which)
    times.push_back(medians_of(rank.gather(std::span<const Call>(calls[which])),
                               callers[which]->statistics().algorithm));
  return times;
}

TurnTimes time_turns(TimedCall& caller, Rank& rank, std::size_t iterations) {
  TimedCall* const one[] = {&caller};
  return time_turns(one, rank, warm_up(one, rank, iterations)).front();
}

}  // namespace tersor::bench
