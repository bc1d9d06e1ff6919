// A radix selection by digits counted from the bracket's lower end: at most 12 bits a pass.
#include "kernels/topk/cpu_select.h"

#include <algorithm>
#include <bit>

namespace tersor::kernels {
namespace {

constexpr std::size_t kFewBins = 256;
constexpr std::size_t kFewKeys = 16384;  // up to here, clearing many bins would cost more

struct Bins {
  std::size_t count;
  unsigned shift;
};

Bins bins_of(const TopkBracket& bracket) {
  const std::size_t count = bracket.reached - bracket.above <= kFewKeys ? kFewBins : kTopkBins;
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
  const auto count_piece = [&](const TopkRunView& piece) {
    const std::size_t found = topk_select(piece, bracket.keys, inside, kTopkStripRoom);
    for (std::size_t i = 0; i < found; ++i)
      ++scratch.histogram[(topk_key(inside.value[i]) - low) >> bins.shift];
  };
  const TopkPlan& plan = source.plan;
  for (std::size_t tile = plan.tiles_before(task); tile < plan.tiles_before(task + 1); ++tile)
    source.for_each_run(tile, low, scratch,
                        [&](const TopkRunView& run) { for_each_piece(run, count_piece); });
}

std::size_t sum_of(const TopkSource& source, std::size_t bin) {
  std::size_t sum = 0;
  for (std::size_t task = 0; task < source.plan.tasks; ++task)
    sum += source.workspace.scratch[task].histogram[bin];
  return sum;
}

}  // namespace

TopkBracket topk_bracket(const TopkLadder& ladder, const TopkTally& tally, std::uint32_t limit,
                         std::size_t k) {
  TopkBracket bracket = topk_widest_bracket(tally, limit, k);
  if (bracket.single()) return bracket;
  for (std::size_t rung = 0; rung < kTopkRungs; ++rung) {
    if (tally.reached[rung] < k) {
      bracket.keys.high = ladder[rung];
      bracket.above = tally.reached[rung];
      break;
    }
    bracket.keys.low = ladder[rung];
    bracket.reached = tally.reached[rung];
  }
  return bracket;
}

TopkBracket topk_widest_bracket(const TopkTally& tally, std::uint32_t limit, std::size_t k) {
  const std::size_t not_zero = tally.reached[0];
  if (not_zero < k) return {{kTopkSmallestKey, kTopkSmallestKey + 1}, not_zero, 0};
  return {{kTopkSmallestKey, limit}, not_zero, 0};
}

TopkBracket topk_narrow(const TopkSource& source, const TopkBracket& bracket, Threads& threads) {
  const Bins bins = bins_of(bracket);
  threads.run(source.plan.tasks,
              [&](std::size_t task) { count_bins(source, bracket, bins, task); });
  std::size_t bin = bins.count - 1, above = bracket.above, inside = sum_of(source, bin);
  while (above + inside < source.plan.k) {
    above += inside;
    inside = sum_of(source, --bin);
  }
  const std::uint32_t low = bracket.keys.low + static_cast<std::uint32_t>(bin << bins.shift);
  const std::uint32_t high = low + (std::uint32_t{1} << bins.shift);
  return {{low, std::min(high, bracket.keys.high)}, above + inside, above};
}

}  // namespace tersor::kernels
