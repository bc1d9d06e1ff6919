// Samples p and reads the ladder of keys off a histogram of the sample.
#include "kernels/topk/cpu_sample.h"

#include "kernels/common/philox.h"

#include <algorithm>
#include <array>
#include <span>

namespace tersor::kernels {
namespace {

constexpr std::size_t kGroup = TopkTuning::kSampleGroup;
constexpr std::size_t kPrefetched = 16;          // groups ahead
constexpr std::size_t kFineSamples = 32768;      // from here bins are 1/256 of an octave, else 1/32
constexpr std::size_t kSampledRungs = kTopkRungs - 1;

// The rungs' ranks, as multiples of the threshold's.
constexpr double kBelow[] = {1.6, 2.6, 4.2};

class Sampler {
 public:
  Sampler(const TopkScan& source, const TopkPlan& plan, const TopkWorkspace& workspace)
      : source_(source), plan_(plan), workspace_(workspace), groups_(plan.samples / kGroup) {}

  /// The task's share of the sample: values that are not zero, at samples_of(task).
  void read(std::size_t task) const {
    TopkScratch& scratch = workspace_.scratch[task];
    const TopkCandidates unused = scratch.candidates(0);
    float* samples = values_of(task);
    scratch.samples = 0;
    for (std::size_t group = first_group(task); group < first_group(task + 1); ++group) {
      prefetch(begin_of(std::min(group + kPrefetched, groups_ - 1)));
      scratch.samples += topk_scan_strip(source_, {begin_of(group), kGroup},
                                         {samples + scratch.samples, unused.index}, scratch.tally);
    }
  }

  std::span<const float> samples_of(std::size_t task) const {
    return {values_of(task), workspace_.scratch[task].samples};
  }

 private:
  std::size_t first_group(std::size_t task) const { return groups_ * task / plan_.tasks; }

  float* values_of(std::size_t task) const {
    return workspace_.samples + first_group(task) * kGroup + task * kTopkSlack;
  }

  std::size_t begin_of(std::size_t group) const {
    const std::size_t stratum = plan_.count / groups_;
    const std::size_t jitter = splitmix64(group) % (stratum - kGroup + 1);
    return (stratum * group + jitter) / kGroup * kGroup;
  }

  void prefetch(std::size_t begin) const {
    const auto* gradient = static_cast<const std::byte*>(source_.gradient);
    __builtin_prefetch(gradient + begin * dtype_bytes(source_.dtype));
    if (source_.feedback.residual_in == nullptr) return;
    const auto* residual = static_cast<const std::byte*>(source_.feedback.residual_in);
    __builtin_prefetch(residual + begin * dtype_bytes(source_.feedback.dtype));
  }

  const TopkScan& source_;
  const TopkPlan& plan_;
  const TopkWorkspace& workspace_;
  std::size_t groups_;
};

/// Ranks from the largest sample, in ascending order: of two rungs above the threshold, the threshold
/// and the rungs below it.
std::array<double, kSampledRungs> ranks_of(const TopkPlan& plan, double scale) {
  const double share = static_cast<double>(plan.samples) / static_cast<double>(plan.count);
  const double expected = scale * static_cast<double>(plan.k) * share;
  const double rank = topk_sample_rank(expected);
  const double above = expected - (rank - expected);
  return {std::min(expected / 2, above), above,
          rank,                          kBelow[0] * rank,
          kBelow[1] * rank,              kBelow[2] * rank};
}

/// Keys of at least so many samples each; the smallest where the sample is not large enough.
TopkLadder ladder_of(std::span<const std::uint32_t> histogram, unsigned shift,
                     const std::array<double, kSampledRungs>& ranks, std::uint32_t limit) {
  TopkLadder ladder;
  ladder.fill(kTopkSmallestKey);
  std::size_t next = 0;
  for (; next < kSampledRungs && ranks[next] < 1; ++next) ladder[kTopkRungs - 1 - next] = limit;
  double reached = 0;
  for (std::size_t bin = histogram.size(); bin-- > 0 && next < kSampledRungs;) {
    reached += histogram[bin];
    const auto key = static_cast<std::uint32_t>(bin << shift);
    for (; next < kSampledRungs && reached >= ranks[next]; ++next)
      ladder[kTopkRungs - 1 - next] = std::clamp(key, kTopkSmallestKey, limit);
  }
  return ladder;
}

}  // namespace

TopkLadder topk_ladder(const TopkScan& source, const TopkPlan& plan,
                       const TopkWorkspace& workspace, double scale, Threads& threads) {
  TopkLadder ladder;
  ladder.fill(kTopkSmallestKey);
  if (plan.samples == 0) return ladder;
  TopkScan reading = source;
  reading.feedback.residual_out = nullptr;
  reading.ladder = ladder;
  const Sampler sampler(reading, plan, workspace);
  threads.run(plan.tasks, [&](std::size_t task) { sampler.read(task); });

  const unsigned shift = plan.samples >= kFineSamples ? 15 : 18;
  const std::span histogram(workspace.sample_histogram, kTopkSampleBins >> (shift - 15));
  std::ranges::fill(histogram, 0);
  for (std::size_t task = 0; task < plan.tasks; ++task)
    for (const float p : sampler.samples_of(task)) ++histogram[topk_key(p) >> shift];
  return ladder_of(histogram, shift, ranks_of(plan, scale), source.limit);
}

}  // namespace tersor::kernels
