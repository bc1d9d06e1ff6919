// Ranks as threads that call `allreduce` in step, each from a fresh copy of its gradient.

#include "bench/allreduce_case.h"

#include <tersor/threads.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "bench/timing.h"

namespace tersor::bench {
namespace {

constexpr int kWarmUps = 2;

Buffer zeros(std::size_t count) {
  Buffer buffer(count * sizeof(float));
  std::memset(buffer.pointer(), 0, buffer.bytes());
  return buffer;
}

/// What one rank needs for its calls: all of it made before the first.
class AllreduceRank {
 public:
  AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Transport& transport)
      : transport_(transport), input_(input), storage_(input.bytes()), threads_(wanted.threads) {
    if (wanted.codec == kAutoCodec) tuner_ = std::make_unique<Tuner>(transport, wanted.automatic);
    const bool feedback = tuner_ == nullptr && make_codec(wanted.codec)->has_feedback();
    if (feedback) {
      residual_ = zeros(input.count());
      owner_residual_ = zeros(owned_count(input.count(), transport.rank(), transport.ranks()));
    }
    state_ = {.residual = f32(residual_), .owner_residual = f32(owner_residual_), .words = &words_};
    options_ = {.codec = wanted.codec,
                .algorithm = wanted.algorithm,
                .state = feedback ? &state_ : nullptr,
                .chunk_count = wanted.chunk_count,
                .checksum = wanted.checksum,
                .threads = &threads_,
                .workspace = &workspace_,
                .statistics = &statistics_,
                .tuner = tuner_.get()};
  }

  /// False while codec auto still tries several ways.
  bool settled() const {
    return tuner_ == nullptr || tuner_->settled(input_.dtype(), input_.count());
  }
  std::string codec() const {
    return tuner_ == nullptr ? options_.codec
                             : tuner_->choose(input_.dtype(), input_.count()).codec;
  }
  std::string explanation() const { return tuner_ == nullptr ? "" : tuner_->explain(); }

  void restore() { std::memcpy(storage_.pointer(), input_.pointer(), input_.bytes()); }
  void call() { allreduce(transport_, gradient(), options_); }

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  const CollectiveStatistics& statistics() const { return statistics_; }

 private:
  static ValueSpan f32(const Buffer& buffer) {
    return buffer.values(buffer.bytes() / sizeof(float), Dtype::kF32);
  }

  Transport& transport_;
  ConstValueSpan input_;
  std::unique_ptr<Tuner> tuner_;
  Buffer storage_;
  Threads threads_;
  Buffer residual_, owner_residual_;
  StateWords words_;
  CollectiveState state_;
  CollectiveWorkspace workspace_;
  CollectiveStatistics statistics_;
  CollectiveOptions options_;
};

/// What the ranks of one measurement share.
struct Shared {
  Shared(const AllreduceCase& wanted_case, const RankGradients& rank_gradients)
      : wanted(wanted_case),
        gradients(rank_gradients),
        meeting(gradients.ranks()),
        results(static_cast<std::size_t>(gradients.ranks())),
        seconds(results.size()),
        statistics(results.size()),
        iterations(wanted.iterations) {}

  const AllreduceCase& wanted;
  const RankGradients& gradients;
  Meeting meeting;
  std::vector<ConstByteSpan> results;
  std::vector<std::vector<double>> seconds;
  std::vector<std::vector<CollectiveStatistics>> statistics;
  std::size_t iterations;
  double relative_error = 0;
  std::string codec, explanation;
};

/// Rank 0 looks at what all ranks ended with; the others wait.
void check_first_call(Shared& shared, AllreduceRank& rank, std::size_t index,
                      Meeting::Member& member) {
  rank.restore();
  member.meet();
  rank.call();
  shared.results[index] = {rank.gradient().pointer(), rank.gradient().bytes()};
  member.meet();
  if (index == 0) {
    shared.codec = rank.codec();
    shared.relative_error = check_sum(shared.gradients, shared.codec, rank.gradient());
    check_identical(shared.results, shared.codec);
    shared.explanation = rank.explanation();
  }
  member.meet();
}

double time_call(AllreduceRank& rank, Meeting::Member& member) {
  rank.restore();
  member.meet();
  const Stopwatch watch;
  rank.call();
  const double seconds = watch.seconds();
  member.meet();
  return seconds;
}

void run_rank(Shared& shared, Transport& transport) {
  const auto index = static_cast<std::size_t>(transport.rank());
  Meeting::Member member(shared.meeting);
  AllreduceRank rank(shared.wanted, shared.gradients.of(transport.rank()), transport);
  while (!rank.settled()) time_call(rank, member);
  check_first_call(shared, rank, index, member);
  double seconds = 0;
  for (int call = 0; call < kWarmUps; ++call) seconds = time_call(rank, member);
  if (index == 0 && shared.iterations == 0) shared.iterations = iterations_for(seconds);
  member.meet();
  for (std::size_t i = 0; i < shared.iterations; ++i) {
    shared.seconds[index].push_back(time_call(rank, member));
    shared.statistics[index].push_back(rank.statistics());
  }
}

/// The median over iterations of the largest value over ranks.
template <typename Field>
double median_of_largest(const Shared& shared, Field field) {
  std::vector<std::vector<double>> values(shared.statistics.size());
  for (std::size_t rank = 0; rank < values.size(); ++rank)
    for (const CollectiveStatistics& call : shared.statistics[rank])
      values[rank].push_back(static_cast<double>(call.*field));
  return median_of_slowest(values);
}

}  // namespace

AllreduceResult measure_allreduce(const AllreduceCase& wanted, const RankGradients& gradients) {
  Shared shared(wanted, gradients);
  run_ranks(gradients.ranks(), wanted.link,
            [&](Transport& transport) { run_rank(shared, transport); });
  using Call = CollectiveStatistics;
  return {.codec = shared.codec,
          .algorithm = shared.statistics[0].back().algorithm,
          .seconds = median_of_slowest(shared.seconds),
          .wire_bytes = static_cast<std::uint64_t>(median_of_largest(shared, &Call::sent_bytes)),
          .relative_error = shared.relative_error,
          .wire_seconds = median_of_largest(shared, &Call::wire_seconds),
          .encode_seconds = median_of_largest(shared, &Call::encode_seconds),
          .decode_seconds = median_of_largest(shared, &Call::decode_seconds),
          .explanation = shared.explanation};
}

}  // namespace tersor::bench
