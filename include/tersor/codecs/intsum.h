/// intsum: whole numbers to scales that all ranks share, so that a transport adds them exactly, in
/// any order and over any topology (THC, Li et al. 2024, without its transform). It sends no
/// frames, only bare values, in two native rounds, or in one where the spec has a scale.
///
/// Round 0  maxima  u32[ceil(count / 256)]: the bits of the largest |p * factor| of a block, a NaN
///                  as 0x7fc00000; native maximum
/// Between  scale = maximum / levels, kept; 0 below 2^-100, NaN where the maximum is not finite
/// Round 1  codes   native sum: lanes=8   i8[count]
///                              lanes=16  u32[ceil(count / 2)]: code 2i + 65,536 * code 2i + 1,
///                                        modulo 2^32; a code that is missing counts as 0
///                              lanes=32  i32[count]
/// Value    scale * sum of the ranks' codes
/// Error    at most scale / 2 a value and rank (nearest), scale (stochastic); with "+ef" it stays
///          in the residual
/// Codes lie in [-levels, levels], levels = (2^(lanes - 1) - 1) / contributions, cut: their sum
/// fits its lane, whatever the gradients are. Levels are at most 2^20 - 1 (nearest) or 2^13 - 1
/// (stochastic), which is what the formulas hold in f32.
/// A block that holds a NaN or an infinity on any rank decodes to NaN on all.
///
/// With scale=VALUE, of all blocks and known beforehand, there is no round 0. Codes are cut to
/// [-levels, levels]; with "+ef" what is cut stays in the residual, without it is lost. Behind the
/// codes of all segments each block has one value more: on how many ranks it held a NaN or an
/// infinity. Residuals of such a block stay on these alone.
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>
#include <tersor/modes.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kIntsumCodecId = 7;

/// Bits in which one value's codes of all ranks add up.
enum class IntsumLanes : std::uint8_t { k8 = 8, k16 = 16, k32 = 32 };

/// Options of the spec: intsum[:lanes=8|16|32,rounding=nearest|stochastic,scale=VALUE].
struct IntsumOptions {
  IntsumLanes lanes = IntsumLanes::k8;
  Rounding rounding = Rounding::kNearest;
  float scale = 0;  ///< of all blocks: what a code of 1 stands for, factor included; 0: none
};

/// The largest sum of codes.
constexpr std::size_t intsum_most(IntsumLanes lanes) {
  return (std::size_t{1} << (static_cast<unsigned>(lanes) - 1)) - 1;
}

/// The largest code where so many ranks' codes are added; 0 where there are too many of them.
constexpr std::size_t intsum_levels(const IntsumOptions& options, std::size_t contributions) {
  const std::size_t exact = options.rounding == Rounding::kNearest ? (1 << 20) - 1 : (1 << 13) - 1;
  return std::min(intsum_most(options.lanes) / contributions, exact);
}
static_assert(intsum_levels({}, 8) == 15 && intsum_levels({}, 128) == 0);

/// The type in which codes are added.
constexpr Dtype intsum_dtype(IntsumLanes lanes) {
  return lanes == IntsumLanes::k8    ? Dtype::kI8
         : lanes == IntsumLanes::k16 ? Dtype::kU32
                                     : Dtype::kI32;
}

/// How many bare values one segment takes in each round; those of the next follow at once.
struct IntsumLayout {
  static constexpr std::size_t kBlock = 256;  ///< values that share a scale
  std::size_t count;
  IntsumLanes lanes;

  constexpr std::size_t maxima() const { return ceil_div(count, kBlock); }
  constexpr std::size_t codes() const {
    return lanes == IntsumLanes::k16 ? ceil_div(count, std::size_t{2}) : count;
  }
};
static_assert(IntsumLayout{257, IntsumLanes::k16}.maxima() == 2);
static_assert(IntsumLayout{257, IntsumLanes::k16}.codes() == 129);

}  // namespace tersor
