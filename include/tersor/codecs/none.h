/// none: the gradient's values unchanged, in the gradient's type; the baseline.
///
/// Payload  values  f32, bf16 or f16 [count], padded to 16 bytes.
/// Error    without feedback none; with feedback one rounding of p to the gradient's type.
///
/// NaNs and infinities are sent unchanged. Decoding may change the bits of NaNs; entropy keeps all
/// bits. Values can be added on the wire (native sum).
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kNoneCodecId = 1;

/// The size of the only section of a segment's payload, for codecs that send values of `dtype`:
/// none (the gradient's dtype), bf16 and f16.
struct ValuesLayout {
  std::size_t count;  ///< values of the segment
  Dtype dtype;        ///< type of the sent values

  /// Returns the size of the values, without padding.
  constexpr std::size_t values_bytes() const { return count * dtype_bytes(dtype); }
  /// Returns the size of the payload.
  constexpr std::size_t bytes() const { return align_up(values_bytes(), kSectionAlignment); }
};
static_assert(ValuesLayout{5, Dtype::kF32}.bytes() == 32);
static_assert(ValuesLayout{5, Dtype::kBf16}.bytes() == 16);
static_assert(ValuesLayout{0, Dtype::kF16}.bytes() == 0);

}  // namespace tersor
