// Sums as a tree of values that lie in the registers of neighbouring threads.
#pragma once

#include "kernels/scalar/bits.h"

namespace tersor::kernels {

/// s_i + s_(i + h) for h = half of all, ..., 2, 1, value i = kValues · t + q lying in thread t of
/// kThreads as s[q]; every one of them gets the sum. All threads of a warp call this together.
template <unsigned kThreads, unsigned kValues, class Warp>
TERSOR_DEVICE float tree_sum_between(const Warp& warp, float* s) {
  TERSOR_UNROLL
  for (unsigned mask = kThreads / 2; mask != 0; mask /= 2) {
    TERSOR_UNROLL
    for (unsigned q = 0; q < kValues; ++q) s[q] += float_of(warp.shuffle_xor(bits_of(s[q]), mask));
  }
  TERSOR_UNROLL
  for (unsigned half = kValues / 2; half != 0; half /= 2) {
    TERSOR_UNROLL
    for (unsigned q = 0; q < half; ++q) s[q] += s[q + half];
  }
  return s[0];
}

}  // namespace tersor::kernels
