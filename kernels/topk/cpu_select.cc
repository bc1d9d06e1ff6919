// Radix selection by digits relative to the lower end of the bracket, at most 12 bits per pass.
#include "kernels/topk/cpu_select.h"

#include <algorithm>
#include <bit>

namespace tersor::kernels {
namespace {

constexpr std::size_t kMinBins = 256;
constexpr std::size_t kMinKeysPerBin = 32;  // a minimum: more bins would cost more than they save

struct Bins {
  std::size_t count;
  unsigned shift;
};

Bins bins_of(const TopkBracket& bracket) {
  const std::size_t inside = bracket.reached - bracket.above;
  const std::size_t count = std::clamp(std::bit_ceil(inside / kMinKeysPerBin), kMinBins, kTopkBins);
  const auto width = std::bit_width(bracket.keys.high - bracket.keys.low - 1);
  const auto digit = static_cast<int>(std::bit_width(count - 1));
  return {count, static_cast<unsigned>(std::max(0, static_cast<int>(width) - digit))};
}

/// Counts the values of a task's tiles whose keys are in the bracket.
void count_bins(const TopkSource& source, const TopkBracket& bracket, Bins bins, std::size_t task) {
  TopkScratch& scratch = source.workspace.scratch[task];
  const TopkCandidates inside = scratch.candidates(1);
  const std::uint32_t low = bracket.keys.low;
  std::fill_n(scratch.histogram.begin(), bins.count, 0);
  const auto count_piece = [&](TopkRunView piece) {
    piece.index = nullptr;
    const std::size_t found = topk_select(piece, bracket.keys, inside, kTopkStripCapacity);
    for (std::size_t i = 0; i < found; ++i)
      ++scratch.histogram[(topk_key(inside.value[i]) - low) >> bins.shift];
  };
  const TopkPlan& plan = source.plan;
  for (std::size_t tile = plan.tiles_before(task); tile < plan.tiles_before(task + 1); ++tile)
    source.for_each_values(tile, scratch,
                           [&](const TopkRunView& run) { for_each_piece(run, count_piece); });
}

std::size_t sum_of(const TopkSource& source, std::size_t bin) {
  std::size_t sum = 0;
  for (std::size_t task = 0; task < source.plan.tasks; ++task)
    sum += source.workspace.scratch[task].histogram[bin];
  return sum;
}

}  // namespace

void topk_update_bracket(TopkBracket& bracket, std::uint32_t key, std::size_t reached,
                         std::size_t k) {
  if (reached >= k && key >= bracket.keys.low) {
    bracket.keys.low = key;
    bracket.reached = reached;
  } else if (reached < k && key == kTopkMinKey) {
    bracket = {{key, key + 1}, reached, 0};
  } else if (reached < k && key <= bracket.keys.high) {
    bracket.keys.high = key;
    bracket.above = reached;
  }
}

TopkBracket topk_narrow(const TopkSource& source, const TopkBracket& bracket, Threads& threads) {
  const Bins bins = bins_of(bracket);
  threads.run(source.plan.tasks,
              [&](std::size_t task) { count_bins(source, bracket, bins, task); });
  std::size_t bin = bins.count - 1, above = bracket.above, inside = sum_of(source, bin);
  while (above + inside < source.plan.k && bin > 0) {
    above += inside;
    inside = sum_of(source, --bin);
  }
  if (above + inside < source.plan.k) return {{kTopkMinKey, kTopkMinKey + 1}, above + inside, 0};
  const std::uint32_t low = bracket.keys.low + static_cast<std::uint32_t>(bin << bins.shift);
  const std::uint32_t high = low + (std::uint32_t{1} << bins.shift);
  return {{low, std::min(high, bracket.keys.high)}, above + inside, above};
}

}  // namespace tersor::kernels
