// Top-k with error feedback: the formulas for a single value, shared by CPU and GPU. This file
// contains no loops.
//
// The corrected gradient is p = a · g + b · e (see ErrorFeedback in kernels/host/arguments.h).
// Without a residual, p = g. Top-k selects the k largest keys, and the lowest index wins a tie. A
// zero is never selected.
#pragma once

#include "kernels/scalar/convert.h"

#include <tersor/dtype.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Number of values that share one base index. A selected value stores a 16-bit index within its
/// tile.
constexpr std::size_t kTopkTile = 65536;

/// The smallest key that may be selected.
constexpr std::uint32_t kTopkMinKey = 1;

/// The sort key of a value: the bits without the sign.
TERSOR_BODY std::uint32_t topk_key(float p) { return magnitude_bits(p); }

/// Returns the smallest key that poisons the tensor. Usually this key is infinity, and NaN keys are
/// larger. If values or residuals are bf16, a finite p that rounds to infinity in bf16 also
/// poisons. Otherwise p would be sent as an infinity or stay in the residual forever.
TERSOR_BODY std::uint32_t topk_limit(Dtype value_dtype, Dtype residual_dtype) {
  return value_dtype == Dtype::kBf16 || residual_dtype == Dtype::kBf16 ? 0x7f7f8000u
                                                                       : kInfinityBits;
}

/// Recovers the old residual, within one rounding, after p overwrote the residual.
TERSOR_BODY float topk_restore(float p, float gradient, float gradient_factor,
                               float residual_factor) {
  const float gradient_term = gradient_factor * gradient;
  return (p - gradient_term) / residual_factor;
}

/// The remainder that stays in the residual when p is sent as bf16.
TERSOR_BODY float topk_bf16_remainder(float p) { return p - to_f32(from_f32<Bf16>(p)); }

/// The contribution of a payload's value to the output. `value` is f32, widened bf16 or code ·
/// scale.
TERSOR_BODY float topk_contribution(float value, float factor) { return value * factor; }

/// Returns the rank r, counted from the largest key, at which to cut a sample. The parameter
/// `expected` is the expected number of sampled keys among the k largest. The rank solves r - 4.75
/// · sqrt(r) = expected. Therefore the threshold is almost surely too low.
inline double topk_sample_rank(double expected) {
  const double root = (4.75 + std::sqrt(4.75 * 4.75 + 4 * expected)) / 2;
  return root * root;
}

/// How the encoder found the k-th key. The payload does not depend on the path.
enum class TopkPath : std::uint8_t {
  kHit,     // the sampled threshold was slightly low, as intended: one pass
  kGather,  // the threshold missed, but a better one is known: p is read again
  kRadix,   // the threshold missed by far: histograms of the digits of p's keys
  kPoison,  // p contains a non-finite value
};

/// Tests and benchmarks: forces the sampled threshold to miss.
enum class TopkForce : std::uint8_t { kNothing, kTooFew, kTooMany, kRadix };

/// The factor applied to ranks in the sample.
constexpr double topk_rank_scale(TopkForce force) {
  if (force == TopkForce::kTooFew) return 0.6;
  return force == TopkForce::kTooMany ? 4.0 : 1.0;
}

}  // namespace tersor::kernels
