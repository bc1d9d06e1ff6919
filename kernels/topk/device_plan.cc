// See device_plan.h. Computes only sizes and addresses and needs no device.
#include "kernels/topk/device_plan.h"

#include "kernels/host/arrays.h"

#include <tersor/align.h>

#include <algorithm>
#include <cmath>

namespace tersor::kernels {
namespace {

constexpr double kExpectedHits = 256;  // expected sampled values among the k largest
constexpr std::size_t kMaxSamples = std::size_t{1} << 18;
constexpr std::size_t kMaxRow = 8;
constexpr std::size_t kAlignment = 64;
constexpr double kMaxCandidates = 4294967294.0;

/// Returns a candidate count that almost surely suffices. The count is 2 k, or more if a small
/// sample forces a threshold far below the k-th key. The margin is 4.75 standard deviations of the
/// sampled rank.
std::uint32_t capacity_of(const TopkDevicePlan& plan, double expected) {
  const double rank = topk_sample_rank(expected);
  const double k = plan.k;
  const double estimate = std::max(2.0, (rank + 4.75 * std::sqrt(rank)) / expected) * k + 64;
  return static_cast<std::uint32_t>(
      std::min({estimate, static_cast<double>(plan.count), kMaxCandidates}));
}

}  // namespace

TopkDevicePlan topk_device_plan(std::size_t count, std::size_t k, TopkForce force) {
  const double density = static_cast<double>(k) / static_cast<double>(count);
  const auto wanted =
      static_cast<std::size_t>(std::min(std::ceil(kExpectedHits / density), 0x1p18));
  static_assert(kMaxSamples == 0x1p18);
  TopkDevicePlan plan{.count = count,
                      .k = static_cast<std::uint32_t>(k),
                      .capacity = 0,
                      .parts = ceil_div(count, kTopkPart),
                      .samples = align_up(std::min(count, wanted), kMaxRow),
                      .rank = 0};
  const double expected = density * static_cast<double>(std::min(plan.samples, count));
  plan.capacity = capacity_of(plan, expected);
  const double ranked = expected * topk_rank_scale(force);
  const double rank = plan.samples_all() ? ranked : topk_sample_rank(ranked);
  plan.rank = static_cast<std::uint32_t>(std::clamp(std::ceil(rank), 1.0, kMaxCandidates));
  return plan;
}

TopkDeviceMemory topk_device_memory(const TopkDevicePlan& plan, std::byte* workspace,
                                    std::size_t& bytes) {
  ArrayAllocator arrays(workspace, kAlignment);
  const TopkDeviceMemory memory{
      .control = arrays.take<TopkControl>(1),
      .counts = arrays.take<std::uint64_t>(std::min(plan.parts, kTopkMaxBlocks)),
      .runs = arrays.take<TopkPartRun>(plan.parts),
      .candidates = arrays.take<TopkCandidate>(plan.capacity),
      .samples = arrays.take<float>(plan.samples),
      .chosen = arrays.take<float>(plan.k)};
  bytes = arrays.bytes();
  return memory;
}

}  // namespace tersor::kernels
