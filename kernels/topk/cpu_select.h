// Finds the k-th key: key counts give a bracket, and histograms narrow the bracket to a single key.
// Private to kernels/topk.
#pragma once

#include "kernels/topk/cpu_candidates.h"

#include <tersor/threads.h>

namespace tersor::kernels {

/// The k-th key is in `keys`. Exactly `above` keys of p, fewer than k, are at least keys.high. At
/// most `reached` keys are at least keys.low. If fewer than k values are nonzero, reached < k and
/// the bracket contains only the smallest key.
struct TopkBracket {
  TopkKeys keys;
  std::size_t reached;
  std::size_t above;

  bool single() const { return keys.high - keys.low == 1; }
};

/// Updates the bracket with the fact that exactly `reached` keys are at least `key`.
void topk_update_bracket(TopkBracket& bracket, std::uint32_t key, std::size_t reached,
                         std::size_t k);

/// Narrows a bracket of more than one key by a pass over its values.
TopkBracket topk_narrow(const TopkSource& source, const TopkBracket& bracket, Threads& threads);

}  // namespace tersor::kernels
