// Sizes of a CPU top-k, all known before the first value is read.
#include "kernels/topk/cpu_plan.h"

#include "kernels/host/arrays.h"
#include "kernels/topk/cpu.h"

#include <tersor/align.h>

#include <algorithm>

namespace tersor::kernels {
namespace {

constexpr std::size_t kAlignment = 64;

/// Returns enough samples for kExpectedHits expected hits, but at most a quarter of all values.
std::size_t samples_of(std::size_t count, std::size_t k) {
  using Tuning = TopkTuning;
  if (count <= Tuning::kMaxUnsampledCount) return 0;
  const double density = static_cast<double>(k) / static_cast<double>(count);
  const double wanted = std::min(Tuning::kExpectedHits / density, double{Tuning::kMaxSamples});
  const std::size_t samples = std::min(static_cast<std::size_t>(wanted), count / 4);
  const double rank = topk_sample_rank(static_cast<double>(samples) * density);
  if (rank > static_cast<double>(samples) / 4) return 0;  // dense: a threshold would save little
  return align_up(samples, Tuning::kSampleGroup);
}

/// Twice the number of candidates expected at the threshold.
std::size_t capacity_of(const TopkPlan& plan) {
  if (plan.samples == 0) return plan.count;
  const double sampling_rate = static_cast<double>(plan.samples) / static_cast<double>(plan.count);
  const double expected =
      topk_sample_rank(static_cast<double>(plan.k) * sampling_rate) / sampling_rate;
  return std::min(plan.count, 2 * std::max(plan.k, static_cast<std::size_t>(expected)));
}

std::size_t tasks_of(std::size_t count, std::size_t tiles, unsigned threads) {
  const std::size_t min_tasks =
      std::max<std::size_t>(1, ceil_div(tiles, TopkTuning::kMaxTilesPerTask));
  if (threads <= 1) return min_tasks;
  const std::size_t max_tasks = std::min(tiles, count / TopkTuning::kMinValuesPerTask);
  return std::max(min_tasks, std::min(max_tasks, threads * TopkTuning::kTasksPerThread));
}

}  // namespace

TopkPlan topk_plan(std::size_t count, std::size_t k, unsigned threads) {
  TopkPlan plan{};
  plan.count = count;
  plan.k = k;
  plan.tiles = ceil_div(count, kTopkTile);
  plan.tasks = tasks_of(count, plan.tiles, threads);
  plan.samples = samples_of(count, k);
  plan.capacity = capacity_of(plan);
  // A task leaves a page when the next strip might not fit, so at most kTopkStripCapacity entries
  // are lost.
  plan.page = plan.tasks == 1 ? plan.capacity + kTopkStripCapacity
                              : std::clamp(plan.capacity / (8 * plan.tasks), 2 * kTopkStripCapacity,
                                           TopkTuning::kMaxPage);
  plan.pages =
      plan.tasks == 1 ? 1 : ceil_div(plan.capacity, plan.page - kTopkStripCapacity) + plan.tasks;
  return plan;
}

TopkWorkspace topk_workspace(const TopkPlan& plan, std::byte* memory, std::size_t& bytes) {
  ArrayAllocator arrays(memory, kAlignment);
  const std::size_t candidates = plan.pages * plan.page + kTopkSlack;
  TopkWorkspace workspace;
  workspace.scratch = arrays.take<TopkScratch>(plan.tasks);
  workspace.runs = arrays.take<TopkRun>(plan.strips());
  workspace.tiles = arrays.take<TopkTileCount>(plan.tiles);
  workspace.samples = arrays.take<float>(plan.samples);
  workspace.top_samples =
      arrays.take<float>(std::min(plan.samples, TopkTuning::kMaxTopSamples) + kTopkSlack);
  workspace.chosen = arrays.take<float>(plan.k);
  workspace.candidates.value = arrays.take<float>(candidates);
  workspace.candidates.index = arrays.take<std::uint16_t>(candidates);
  bytes = arrays.bytes();
  return workspace;
}

std::size_t topk_workspace_bytes(std::size_t count, std::size_t k, unsigned threads) {
  std::size_t bytes = 0;
  topk_workspace(topk_plan(count, k, threads), nullptr, bytes);
  return bytes + kAlignment - 1;
}

}  // namespace tersor::kernels
