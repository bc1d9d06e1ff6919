/// bf16: the upper half of an f32, two bytes a value; the honest baseline of every comparison.
///
/// Payload  values  bf16[count], padded to 16 bytes (ValuesLayout of <tersor/codecs/none.h>)
/// Value    to nearest even; NaN becomes 0x7fff; beyond the largest finite value: infinity
/// Error    at most 2^-8 of the value; 2^-134 where that is subnormal
/// Stochastic rounding takes one of the two neighbours by 16 random bits, each the more often the
/// nearer it is, so that the mean of many is the value. What bf16 holds stays; beyond its largest
/// finite value infinity stands for 2^128. Errors are twice as large at most.
/// No transport rounds so: there is no native sum.
/// Rounded to nearest, values add on the wire (native sum): the transport adds in f32 and rounds at
/// each hop, so its error grows with the ranks. Two-shot and gather round only as often as their
/// frames are written.
#pragma once

#include <tersor/codecs/none.h>
#include <tersor/modes.h>

#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kBf16CodecId = 2;

/// Options of the spec: bf16[:rounding=nearest|stochastic].
struct Bf16Options {
  Rounding rounding = Rounding::kNearest;
};

}  // namespace tersor
