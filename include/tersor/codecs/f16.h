/// f16: IEEE binary16, two bytes a value: more digits than bf16, less range.
///
/// Payload  values  f16[count], padded to 16 bytes (ValuesLayout of <tersor/codecs/none.h>)
/// Value    round to nearest even; NaN becomes 0x7fff; magnitudes from 65,520 on become infinity
/// Error    at most 2^-11 of the value; 2^-25 where that is subnormal
/// Finite values that became infinite are counted in StateWords::overflows; with feedback the
/// residual keeps its old value there. Values add on the wire (native sum) as those of bf16 do.
#pragma once

#include <tersor/codecs/none.h>

#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kF16CodecId = 3;

}  // namespace tersor
