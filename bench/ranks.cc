// Gradients of several ranks, and the checks of what they were reduced to.

#include "bench/ranks.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>

#include "bench/codec_operations.h"
#include "bench/compare.h"
#include "bench/planned_codec.h"
#include "bench/timing.h"

namespace tersor::bench {
namespace {

/// What one encode and decode changes, relative to the gradient.
double codec_error(std::string_view codec, ConstValueSpan gradient) {
  Threads threads(0);
  const PlannedCodec planned(
      with_feedback(codec, Feedback::kNone),
      {.count = gradient.count(), .dtype = gradient.dtype(), .threads = &threads});
  const Buffer frame = planned.frame(), decoded(gradient.bytes());
  const ValueSpan values = decoded.values(gradient.count(), gradient.dtype());
  planned.encode(gradient, frame.span());
  planned.decode(used_bytes(frame), values, DecodeMode::kAssign);
  return relative_error(gradient, values);
}

double norm(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// Of a sum that is rounded to `dtype` once a rank.
double rounding_limit(Dtype dtype, int ranks) {
  return (dtype == Dtype::kF32 ? 1e-6 : 5e-3) * (1 + std::sqrt(ranks));
}

}  // namespace

RankGradients::RankGradients(std::size_t count, Dtype dtype, int ranks)
    : dtype_(dtype), sum_(count) {
  const SampleSource source("normal");
  for (int rank = 0; rank < ranks; ++rank) {
    storage_.push_back(sample_buffer(source, count, dtype, static_cast<std::uint64_t>(rank) + 1));
    add_values(1.0, of(rank), sum_);
  }
}

ConstValueSpan RankGradients::of(int rank) const {
  return storage_[static_cast<std::size_t>(rank)].values(count(), dtype_);
}

double RankGradients::error_limit(std::string_view codec) const {
  constexpr std::size_t kFew = 1024;  // values, of which nothing can be said on the average
  const double rounding = rounding_limit(dtype_, ranks());
  if (count() < kFew) return 1 + rounding;
  const double of_codec = codec_error(codec, of(0));
  double sent = 0;
  for (int rank = 0; rank < ranks(); ++rank) sent += of_codec * bench::norm(of(rank));
  const double of_sum = norm(sum_);
  return 3 * (sent + of_codec * (of_sum + sent)) / of_sum + rounding;
}

double check_sum(const RankGradients& gradients, std::string_view codec, ConstValueSpan actual) {
  const double error = relative_error(gradients.sum(), actual);
  require_within(error, gradients.error_limit(codec),
                 fmt::format("allreduce of {} values by {}", gradients.count(), codec));
  return error;
}

void check_identical(std::span<const ConstByteSpan> of_ranks, std::string_view codec) {
  for (std::size_t rank = 1; rank < of_ranks.size(); ++rank)
    if (!same_bits(of_ranks[0], of_ranks[rank]))
      throw Error(fmt::format("{}: ranks 0 and {} ended with different bits", codec, rank));
}

double median_of_slowest(std::span<const std::vector<double>> per_rank) {
  std::vector<double> slowest(per_rank[0]);
  for (const std::vector<double>& seconds : per_rank)
    for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], seconds[i]);
  return median(slowest);
}

std::size_t iterations_for(double seconds) {
  return static_cast<std::size_t>(std::clamp(1.0 / std::max(seconds, 1e-9), 5.0, 200.0));
}

}  // namespace tersor::bench
