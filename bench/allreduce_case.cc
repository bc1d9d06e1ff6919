// Ranks that call `allreduce` in step, each from a fresh copy of its gradient.

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
  AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Rank& rank)
      : rank_(rank),
        by_library_(wanted.by_library),
        input_(input),
        storage_(input.bytes()),
        threads_(wanted.threads) {
    if (by_library_) return;
    if (wanted.codec == kAutoCodec)
      tuner_ = std::make_unique<Tuner>(rank.transport(), wanted.automatic);
    const bool feedback = tuner_ == nullptr && make_codec(wanted.codec)->has_feedback();
    if (feedback) make_residuals(wanted);
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
  /// What carries the values: none's, where the library does.
  std::string codec() const {
    if (by_library_) return "none";
    return tuner_ == nullptr ? options_.codec
                             : tuner_->choose(input_.dtype(), input_.count()).codec;
  }
  std::string explanation() const { return tuner_ == nullptr ? "" : tuner_->explain(); }

  void restore() { std::memcpy(storage_.pointer(), input_.pointer(), input_.bytes()); }
  void call() {
    if (by_library_) return rank_.library_sum(gradient());
    allreduce(rank_.transport(), gradient(), options_);
  }

  ValueSpan gradient() const { return storage_.values(input_.count(), input_.dtype()); }
  const CollectiveStatistics& statistics() const { return statistics_; }

 private:
  void make_residuals(const AllreduceCase& wanted) {
    const std::size_t count = input_.count();
    const int rank = rank_.transport().rank();
    if (wanted.algorithm == Algorithm::kHierarchical) {
      const std::vector<int> hosts = rank_.transport().hosts();
      residual_ = zeros(encoded_count(count, rank, hosts));
      owner_residual_ = zeros(owned_count(count, rank, hosts));
    } else {
      residual_ = zeros(count);
      owner_residual_ = zeros(owned_count(count, rank, rank_.transport().ranks()));
    }
  }

  static ValueSpan f32(const Buffer& buffer) {
    return buffer.values(buffer.bytes() / sizeof(float), Dtype::kF32);
  }

  Rank& rank_;
  bool by_library_;
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

/// Rank 0 looks at what it ended with; all compare their bits. Returns the relative error.
double check_first_call(const RankGradients& gradients, Rank& rank, AllreduceRank& caller) {
  caller.restore();
  rank.meet();
  caller.call();
  const std::string codec = caller.codec();
  check_identical(rank, {caller.gradient().pointer(), caller.gradient().bytes()}, codec);
  return rank.from_first(rank.first() ? check_sum(gradients, codec, caller.gradient()) : 0.0);
}

double time_call(AllreduceRank& caller, Rank& rank) {
  caller.restore();
  rank.meet();
  const Stopwatch watch;
  caller.call();
  const double seconds = watch.seconds();
  rank.meet();
  return seconds;
}

/// One rank's calls.
struct Calls {
  std::vector<double> seconds;
  std::vector<CollectiveStatistics> statistics;
};

/// The median over iterations of the largest value over ranks.
template <typename Field>
double median_of_largest(Rank& rank, const Calls& calls, Field field) {
  std::vector<double> values;
  for (const CollectiveStatistics& call : calls.statistics)
    values.push_back(static_cast<double>(call.*field));
  return median_of_slowest(rank.gather(std::span<const double>(values)));
}

AllreduceResult result_of(Rank& rank, const Calls& calls, double relative_error) {
  using Call = CollectiveStatistics;
  return {
      .algorithm = calls.statistics.back().algorithm,
      .seconds = median_of_slowest(rank.gather(std::span<const double>(calls.seconds))),
      .wire_bytes = static_cast<std::uint64_t>(median_of_largest(rank, calls, &Call::sent_bytes)),
      .relative_error = relative_error,
      .wire_seconds = median_of_largest(rank, calls, &Call::wire_seconds),
      .encode_seconds = median_of_largest(rank, calls, &Call::encode_seconds),
      .decode_seconds = median_of_largest(rank, calls, &Call::decode_seconds)};
}

AllreduceResult measure_rank(const AllreduceCase& wanted, const RankGradients& gradients,
                             Rank& rank) {
  AllreduceRank caller(wanted, gradients.of(rank.index()), rank);
  while (!caller.settled()) time_call(caller, rank);
  const double error = check_first_call(gradients, rank, caller);
  double seconds = 0;
  for (int call = 0; call < kWarmUps; ++call) seconds = time_call(caller, rank);
  const std::size_t iterations =
      rank.from_first(wanted.iterations == 0 ? iterations_for(seconds) : wanted.iterations);
  Calls calls;
  for (std::size_t i = 0; i < iterations; ++i) {
    calls.seconds.push_back(time_call(caller, rank));
    calls.statistics.push_back(caller.statistics());
  }
  AllreduceResult result = result_of(rank, calls, error);
  result.codec = caller.codec();
  result.explanation = caller.explanation();
  return result;
}

}  // namespace

AllreduceResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                                  const RankGradients& gradients) {
  AllreduceResult result;
  fleet.run([&](Rank& rank) {
    const AllreduceResult own = measure_rank(wanted, gradients, rank);
    if (rank.stores()) result = own;
  });
  return result;
}

}  // namespace tersor::bench
