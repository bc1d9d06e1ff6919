/// f16: IEEE binary16, two bytes per value, with higher precision and a smaller range than bf16.
///
/// Payload  values  f16[count], padded to 16 bytes (ValuesLayout of <tersor/codecs/none.h>).
/// Value    rounded to nearest even; NaN becomes 0x7fff; magnitudes from 65,520 on become infinity.
/// Error    at most 2^-11 of the value; 2^-25 for subnormal values.
///
/// StateWords::overflows counts finite values that became infinite. The residual of error feedback
/// does not change for these values. Values can be added on the wire (native sum), like bf16
/// values.
#pragma once

#include <tersor/codecs/none.h>

#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kF16CodecId = 3;

}  // namespace tersor
