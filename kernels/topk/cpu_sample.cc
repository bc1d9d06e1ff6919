// Samples p and computes order statistics of the sample.
#include "kernels/topk/cpu_sample.h"

#include "kernels/scalar/philox.h"

#include <algorithm>
#include <span>

namespace tersor::kernels {
namespace {

constexpr std::size_t kGroup = TopkTuning::kSampleGroup;
constexpr std::size_t kPrefetchDistance = 24;  // prefetch distance in groups
constexpr double kRetryRankFactor = 1.1;       // factor applied to the rank after a miss
constexpr unsigned kCoarseShift = 31 - 12;     // bins of 1/16 octave, kTopkBins in total

}  // namespace

TopkSample::TopkSample(const TopkScan& source, const TopkPlan& plan, const TopkWorkspace& workspace,
                       Threads& threads)
    : plan_(plan), workspace_(workspace), source_(source), groups_(plan.samples / kGroup) {
  source_.feedback.residual_out = nullptr;
  if (plan.samples != 0) threads.run(plan.tasks, [&](std::size_t task) { read(task); });
}

/// Reads one task's share of the sample and builds the task's histogram.
void TopkSample::read(std::size_t task) {
  const std::size_t begin = groups_ * task / plan_.tasks;
  const std::size_t end = groups_ * (task + 1) / plan_.tasks;
  auto& histogram = workspace_.scratch[task].histogram;
  histogram.fill(0);
  for (std::size_t group = begin; group < end; ++group) {
    prefetch(std::min(group + kPrefetchDistance, groups_ - 1));
    float* values = workspace_.samples + group * kGroup;
    topk_compute(source_, {begin_of(group), kGroup}, values);
    for (std::size_t i = 0; i < kGroup; ++i) ++histogram[topk_key(values[i]) >> kCoarseShift];
  }
}

std::size_t TopkSample::begin_of(std::size_t group) const {
  const std::size_t stratum = plan_.count / groups_;
  const std::size_t jitter = splitmix64(group) % (stratum - kGroup + 1);
  return (stratum * group + jitter) / kGroup * kGroup;
}

void TopkSample::prefetch(std::size_t group) const {
  const std::size_t begin = begin_of(group);
  const auto prefetch_values = [&](const void* values, std::size_t bytes) {
    const auto* position = static_cast<const std::byte*>(values) + begin * bytes;
    __builtin_prefetch(position);
    __builtin_prefetch(position + kGroup * bytes - 1);
  };
  prefetch_values(source_.gradient, dtype_bytes(source_.dtype));
  if (source_.feedback.residual_in != nullptr)
    prefetch_values(source_.feedback.residual_in, dtype_bytes(source_.feedback.dtype));
}

TopkThresholds TopkSample::thresholds(double scale) {
  if (plan_.samples == 0) return {kTopkMinKey, kTopkMinKey, kTopkMinKey};
  const double sampling_rate =
      static_cast<double>(plan_.samples) / static_cast<double>(plan_.count);
  const double expected = scale * static_cast<double>(plan_.k) * sampling_rate;
  rank_ = topk_sample_rank(expected);
  collect_top(rank_);
  return {key_at(rank_), key_at(expected), key_at(2 * expected - rank_)};
}

std::uint32_t TopkSample::threshold_after(std::size_t reached) {
  if (plan_.samples == 0) return kTopkMinKey;
  const double wrong = static_cast<double>(plan_.k) / (static_cast<double>(reached) + 1);
  const double rank =
      std::min(rank_ * wrong * kRetryRankFactor, static_cast<double>(plan_.samples));
  collect_top(rank);
  return key_at(rank);
}

/// Collects the samples from the bin of the rank upwards, or none if too many samples qualify.
void TopkSample::collect_top(double rank) {
  double reached = 0;
  std::size_t bin = kTopkBins;
  while (bin > 0 && reached < rank) {
    --bin;
    for (std::size_t task = 0; task < plan_.tasks; ++task)
      reached += static_cast<double>(workspace_.scratch[task].histogram[bin]);
  }
  top_key_ = std::max(static_cast<std::uint32_t>(bin << kCoarseShift), kTopkMinKey);
  top_count_ = 0;
  if (reached > TopkTuning::kMaxTopSamples) return;
  const TopkRunView all{workspace_.samples, nullptr, plan_.samples};
  top_count_ = topk_select(all, {top_key_, 0x80000000u}, {workspace_.top_samples, nullptr},
                           TopkTuning::kMaxTopSamples + kTopkSlack);
}

/// Returns the key of the given rank among the collected samples, or the lowest known key if fewer
/// samples were collected.
std::uint32_t TopkSample::key_at(double rank) {
  if (rank < 1) return source_.limit;
  const auto position = static_cast<std::size_t>(rank) - 1;
  std::uint32_t key = top_key_;
  if (position < top_count_) {
    const std::span top(workspace_.top_samples, top_count_);
    const auto at = top.begin() + static_cast<std::ptrdiff_t>(position);
    std::nth_element(top.begin(), at, top.end(),
                     [](float a, float b) { return topk_key(a) > topk_key(b); });
    key = topk_key(*at);
  }
  return std::min(key, source_.limit);
}

}  // namespace tersor::kernels
