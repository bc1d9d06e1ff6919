/// intsum: integers with scales common to all ranks. A transport adds the integers exactly, in any
/// order and over any topology (THC, Li et al. 2024, without its transform). The codec sends no
/// frames, only raw values in two native rounds. If the spec has a scale, there is one round.
///
/// Round 0  maxima  u32[ceil(count / 256)]: the bits of the largest |p * factor| of a block, a NaN
///                  as 0x7fc00000; native maximum.
/// Between  scale = maximum / levels, stored in the round state; 0 below 2^-100, NaN if the maximum
///          is not finite.
/// Round 1  codes   native sum: bits=8   i8[count]
///                              bits=16  u32[ceil(count / 2)]: code 2i + 65,536 * code 2i + 1,
///                                        modulo 2^32; a missing code counts as 0
///                              bits=32  i32[count].
/// Value    scale * sum of the ranks' codes.
/// Error    at most scale / 2 per value and rank (nearest), scale (stochastic); "+ef" keeps the
///          error in the residual.
///
/// Codes are clipped to [-levels, levels] with levels = (2^(bits - 1) - 1) / contributions, so the
/// sum always fits its accumulator. Levels are at most 2^20 - 1 (nearest) or 2^13 - 1 (stochastic);
/// the formulas are exact in f32 up to these limits. A block with a NaN or an infinity on any rank
/// decodes to NaN on all ranks.
///
/// If the spec has scale=VALUE, all blocks use this scale, and round 0 is absent. Codes are clipped
/// to [-levels, levels]. The clipped remainder stays in the residual (with "+ef") or is lost. After
/// the codes of all segments, each block sends one more value: the number of ranks whose block had
/// a NaN or an infinity. Only these ranks keep the block's residual unchanged.
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kIntsumCodecId = 7;

/// Accumulator bits of one value, for the sum of all ranks' codes.
enum class AccumulatorBits : std::uint8_t { k8 = 8, k16 = 16, k32 = 32 };
/// The former name of AccumulatorBits.
using IntsumLanes [[deprecated("use AccumulatorBits")]] = AccumulatorBits;

/// Options of the spec intsum[:bits=8|16|32,rounding=nearest|stochastic,scale=VALUE].
struct IntsumOptions {
  AccumulatorBits accumulator_bits = AccumulatorBits::k8;  ///< bits of a sum
  Rounding rounding = Rounding::kNearest;                  ///< rounding to a code
  float scale = 0;  ///< the value of code 1 in all blocks, factor included; 0: scales per block
};

/// Returns the largest sum of codes.
constexpr std::size_t intsum_most(AccumulatorBits accumulator_bits) {
  return (std::size_t{1} << (static_cast<unsigned>(accumulator_bits) - 1)) - 1;
}

/// Returns the largest code if `contributions` ranks' codes are added; 0 for too many ranks.
constexpr std::size_t intsum_levels(const IntsumOptions& options, std::size_t contributions) {
  const std::size_t exact = options.rounding == Rounding::kNearest ? (1 << 20) - 1 : (1 << 13) - 1;
  return std::min(intsum_most(options.accumulator_bits) / contributions, exact);
}
static_assert(intsum_levels({}, 8) == 15 && intsum_levels({}, 128) == 0);

/// Returns the type in which codes are added.
constexpr Dtype intsum_dtype(AccumulatorBits accumulator_bits) {
  return accumulator_bits == AccumulatorBits::k8    ? Dtype::kI8
         : accumulator_bits == AccumulatorBits::k16 ? Dtype::kU32
                                                    : Dtype::kI32;
}

/// The number of raw values of one segment in each round. Segments follow each other without gaps.
struct IntsumLayout {
  static constexpr std::size_t kBlock = 256;  ///< values per scale
  std::size_t count;                          ///< values of the segment
  AccumulatorBits accumulator_bits;           ///< bits of a sum

  /// Returns the raw values of round 0.
  constexpr std::size_t maxima() const { return ceil_div(count, kBlock); }
  /// Returns the raw values of the round with the codes.
  constexpr std::size_t codes() const {
    return accumulator_bits == AccumulatorBits::k16 ? ceil_div(count, std::size_t{2}) : count;
  }
};
static_assert(IntsumLayout{257, AccumulatorBits::k16}.maxima() == 2);
static_assert(IntsumLayout{257, AccumulatorBits::k16}.codes() == 129);

}  // namespace tersor
