// Gradients of several ranks, and the checks of sums.

#include "bench/ranks/gradients.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>

#include "bench/common/compare.h"
#include "bench/common/timing.h"
#include "codecs/loss.h"

namespace tersor::bench {
namespace {

/// The relative error of an encode and decode, for a sum over `ranks` ranks.
double codec_error(std::string_view codec, ConstValueSpan gradient, int ranks) {
  Threads threads(0);
  const PlannedCodec planned(with_feedback(codec, Feedback::kNone),
                             {.count = gradient.count(),
                              .dtype = gradient.dtype(),
                              .threads = &threads,
                              .contributions = static_cast<std::size_t>(ranks)});
  return measure_loss(planned, gradient).relative_error();
}

double norm(std::span<const double> values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// The error limit of a sum rounded to `dtype` once per rank.
double rounding_limit(Dtype dtype, int ranks) {
  return (dtype == Dtype::kF32 ? 1e-6 : 5e-3) * (1 + std::sqrt(ranks));
}

}  // namespace

RankGradients::RankGradients(std::size_t count, Dtype dtype, int ranks,
                             std::optional<int> only_rank)
    : count_(count), dtype_(dtype), storage_(static_cast<std::size_t>(ranks)) {
  const bool knows_sum = only_rank.value_or(0) == 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool here = only_rank.value_or(rank) == rank;
    if (!here && !knows_sum) continue;
    Buffer& buffer = storage_[static_cast<std::size_t>(rank)];
    buffer = sample(rank);
    if (knows_sum) add_to_sum(of(rank));
    if (!here) buffer = {};
  }
}

Buffer RankGradients::sample(int rank) const {
  return sample_buffer(SampleSource("normal"), count_, dtype_,
                       static_cast<std::uint64_t>(rank) + 1);
}

void RankGradients::add_to_sum(ConstValueSpan gradient) {
  sum_.resize(count_);
  add_values(1.0, gradient, sum_);
  norms_ += bench::norm(gradient);
}

ConstValueSpan RankGradients::of(int rank) const {
  return storage_[static_cast<std::size_t>(rank)].values(count(), dtype_);
}

double RankGradients::error_limit(std::string_view codec) const {
  constexpr std::size_t kFew = 1024;  // values; averages are meaningless below
  const double rounding = rounding_limit(dtype_, ranks());
  if (count() < kFew) return 1 + rounding;
  const double of_codec = codec_error(codec, of(0), ranks());
  const double sent = of_codec * norms_;
  const double of_sum = norm(sum_);
  return 3 * (sent + of_codec * (of_sum + sent)) / of_sum + rounding;
}

double check_sum(const RankGradients& gradients, std::string_view codec, ConstValueSpan actual) {
  const double error = relative_error(gradients.sum(), actual);
  require_within(error, gradients.error_limit(codec),
                 fmt::format("allreduce of {} values by {}", gradients.count(), codec));
  return error;
}

void check_identical(Rank& rank, ConstByteSpan own, std::string_view codec) {
  const std::uint64_t print = fingerprint(own);
  const auto all = rank.gather(std::span(&print, 1));
  for (std::size_t other = 1; other < all.size(); ++other)
    if (all[0] != all[other])
      throw Error(fmt::format("{}: ranks 0 and {} ended with different bits", codec, other));
}

double check_reduced(const RankGradients& gradients, Rank& rank, std::string_view codec,
                     ConstValueSpan own) {
  check_identical(rank, {own.pointer(), own.bytes()}, codec);
  return rank.from_rank0(rank.is_rank0() ? check_sum(gradients, codec, own) : 0.0);
}

double median_of_slowest(std::span<const std::vector<double>> per_rank) {
  std::vector<double> slowest(per_rank[0]);
  for (const std::vector<double>& seconds : per_rank)
    for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], seconds[i]);
  return median(slowest);
}

}  // namespace tersor::bench
