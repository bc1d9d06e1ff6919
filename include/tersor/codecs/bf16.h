/// bf16: the upper half of an f32, two bytes a value; the honest baseline of every comparison.
///
/// Payload  values  bf16[count], padded to 16 bytes (ValuesLayout of <tersor/codecs/none.h>)
/// Value    round to nearest even; NaN becomes 0x7fff; beyond the largest finite value: infinity
/// Error    at most 2^-8 of the value; 2^-134 where that is subnormal
/// Values add on the wire (native sum): the transport adds in f32 and rounds at each hop, so its
/// error grows with the ranks. Two-shot and gather round only as often as their frames are written.
#pragma once

#include <tersor/codecs/none.h>

#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kBf16CodecId = 2;

}  // namespace tersor
