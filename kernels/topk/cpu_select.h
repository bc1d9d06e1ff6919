// Finds the k-th key: from the counts of the scan to a bracket, from there by histograms to one key.
// Inside kernels/topk only.
#pragma once

#include "kernels/topk/cpu_candidates.h"

#include <tersor/threads.h>

namespace tersor::kernels {

/// The k-th key is one of `keys`; `reached` keys of p are at least keys.low, `above` at least
/// keys.high: above < k <= reached. Where fewer than k values are not zero, reached < k, and the
/// bracket is the smallest key alone.
struct TopkBracket {
  TopkKeys keys;
  std::size_t reached;
  std::size_t above;

  bool single() const { return keys.high - keys.low == 1; }
};

/// The narrowest bracket that the scan's counts give. Nothing in p may have been beyond `limit`.
TopkBracket topk_bracket(const TopkLadder& ladder, const TopkTally& tally, std::uint32_t limit,
                         std::size_t k);

/// The same without the rungs in between: all keys of values that are not zero.
TopkBracket topk_widest_bracket(const TopkTally& tally, std::uint32_t limit, std::size_t k);

/// Narrows a bracket that is not a single key by a pass over its values.
TopkBracket topk_narrow(const TopkSource& source, const TopkBracket& bracket, Threads& threads);

}  // namespace tersor::kernels
