// The ways to find the k-th key, the same on every device, and how tests choose one.
#pragma once

#include <cstdint>

namespace tersor::kernels {

/// Which way the k-th key was found. The payload never depends on it.
enum class TopkPath : std::uint8_t {
  kHit,     // the sampled threshold was a little low, as it should be: one pass
  kGather,  // it missed, but the pass counted enough to know a better one: p is read once more
  kRadix,   // it missed by far: histograms of p by digits of the key
  kPoison,  // p holds a value that is not finite
};

/// Makes the sampled threshold miss; for tests and benchmarks.
enum class TopkForce : std::uint8_t { kNothing, kTooFew, kTooMany, kRadix };

/// What the ranks in the sample are multiplied by.
constexpr double topk_rank_scale(TopkForce force) {
  if (force == TopkForce::kTooFew) return 0.6;
  return force == TopkForce::kTooMany ? 4.0 : 1.0;
}

}  // namespace tersor::kernels
