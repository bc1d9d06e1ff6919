/// bf16: the upper half of an f32, two bytes per value. bf16 is the baseline of all comparisons.
///
/// Payload  values  bf16[count], padded to 16 bytes (ValuesLayout of <tersor/codecs/none.h>).
/// Value    rounded to nearest even; NaN becomes 0x7fff; overflow becomes infinity.
/// Error    at most 2^-8 of the value; 2^-134 for subnormal values.
///
/// Stochastic rounding picks one of the two neighbours with 16 random bits, in proportion to the
/// distance, so the mean is correct. Values with an exact bf16 code do not change. Above the
/// largest finite value, infinity represents 2^128. Errors are at most twice as large. No transport
/// rounds stochastically, so there is no native sum.
///
/// Values rounded to nearest can be added on the wire (native sum). The transport adds in f32 and
/// rounds at each hop, so the error grows with the number of ranks. Two-shot and gather round only
/// once per written frame.
#pragma once

#include <tersor/codecs/none.h>
#include <tersor/modes.h>

#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kBf16CodecId = 2;

/// Options of the spec bf16[:rounding=nearest|stochastic].
struct Bf16Options {
  Rounding rounding = Rounding::kNearest;  ///< rounding to bf16
};

}  // namespace tersor
