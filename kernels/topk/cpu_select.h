// Finds the k-th key: counts at some keys give a bracket, histograms narrow it to one key.
// Inside kernels/topk only.
#pragma once

#include "kernels/topk/cpu_candidates.h"

#include <tersor/threads.h>

namespace tersor::kernels {

/// The k-th key is one of `keys`. Of p's keys, `above` are at least keys.high, and fewer than k; at
/// most `reached` are at least keys.low. Where fewer than k values are not zero, reached < k and
/// the bracket is the smallest key alone.
struct TopkBracket {
  TopkKeys keys;
  std::size_t reached;
  std::size_t above;

  bool single() const { return keys.high - keys.low == 1; }
};

/// Makes use of the fact that exactly `reached` keys are at least `key`.
void topk_learn(TopkBracket& bracket, std::uint32_t key, std::size_t reached, std::size_t k);

/// Narrows a bracket that is not a single key by a pass over its values.
TopkBracket topk_narrow(const TopkSource& source, const TopkBracket& bracket, Threads& threads);

}  // namespace tersor::kernels
