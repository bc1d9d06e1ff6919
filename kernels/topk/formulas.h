// Top-k with error feedback: what CPU and GPU both compute, one value at a time. No loops.
//
// With p = a · g + b · e (ErrorFeedback of kernels/host/arguments.h; p = g where there is no
// residual), chosen are the k largest keys, ties to the lowest index; zeros are never chosen.
#pragma once

#include "kernels/scalar/convert.h"

#include <tersor/dtype.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Values whose indices share one base: 16 bits say where in its tile a kept value lies.
constexpr std::size_t kTopkTile = 65536;

/// The smallest key that may be chosen.
constexpr std::uint32_t kTopkSmallestKey = 1;

/// What orders values: the bits without sign.
TERSOR_BODY std::uint32_t topk_key(float p) { return magnitude_bits(p); }

/// Keys from here poison the tensor: NaN and infinity, and where values or residuals are bf16, what
/// rounds to infinity there. (It would be sent as an infinity, or stay in the residual for ever.)
TERSOR_BODY std::uint32_t topk_limit(Dtype value_dtype, Dtype residual_dtype) {
  return value_dtype == Dtype::kBf16 || residual_dtype == Dtype::kBf16 ? 0x7f7f8000u
                                                                       : kInfinityBits;
}

/// The old residual to one rounding, where p has overwritten it.
TERSOR_BODY float topk_undo(float p, float gradient, float gradient_factor, float residual_factor) {
  const float sent = gradient_factor * gradient;
  return (p - sent) / residual_factor;
}

/// What remains in the residual of a value that is sent as bf16.
TERSOR_BODY float topk_bf16_remainder(float p) { return p - to_f32(from_f32<Bf16>(p)); }

/// What a payload's value adds to the output; `value` is f32, or bf16 widened, or code · scale.
TERSOR_BODY float topk_contribution(float value, float factor) { return value * factor; }

/// The rank r, counted from the largest, at which the keys of a sample are cut, where `expected` of
/// them belong to the k: r - 4.75 · sqrt(r) = expected, so that the cut is almost surely too low.
inline double topk_sample_rank(double expected) {
  const double root = (4.75 + std::sqrt(4.75 * 4.75 + 4 * expected)) / 2;
  return root * root;
}

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
