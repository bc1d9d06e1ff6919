// int8: 8-bit codes in [-127, 127], one scale per 256 values. Use this header as a template for new
// formats. The parts of a format are described in kernels/quantize/formulas.h.
#ifndef TERSOR_KERNELS_QUANTIZE_INT8_H_
#define TERSOR_KERNELS_QUANTIZE_INT8_H_

#include "kernels/quantize/formulas.h"

#include <tersor/codecs/int8.h>

#include <string_view>

#if defined(__CUDACC__)
#include "kernels/quantize/rows.cuh"
#endif

namespace tersor::kernels {

struct Int8Format : QuantizeFormat<Int8Layout> {
  static constexpr std::string_view kName = "int8";
  static constexpr std::string_view kSummary =
      "eight bits per value, a scale per 256 values (QSGD with absmax scaling)";
  static constexpr std::uint16_t kId = kInt8CodecId;
  static constexpr float kLevels = 127;
};

#if defined(__CUDACC__)

template <>
struct RowCodes<Int8Format> : IntegerRowCodes<Int8Format> {
  static constexpr bool kShifted = false;

  template <unsigned kByte, unsigned kRow>
  TERSOR_DEVICE static RowBytes<kRow> pack(const std::uint32_t (&sums)[kRow]) {
    return pack_bytes<kByte>(sums);
  }

  template <unsigned kRow>
  TERSOR_DEVICE static void values(const RowBytes<kRow>& row, float (&values)[kRow]) {
    std::uint32_t word[kRow / 4];
    std::memcpy(word, &row, sizeof row);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i)
      values[i] = float_of_byte<128>(word[i / 4] ^ 0x80808080u, i % 4);
  }
};

#endif

}  // namespace tersor::kernels

#endif  // TERSOR_KERNELS_QUANTIZE_INT8_H_

#ifdef TERSOR_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

template <>
struct VectorCodes<Int8Format> : IntegerVectorCodes {
  static HWY_INLINE void store(const VI32 (&codes)[kVectors], std::byte* block, std::size_t index) {
    store_bytes(codes, block + index);
  }

  static HWY_INLINE void load(const std::byte* block, std::size_t index, VF32 (&values)[kVectors]) {
    const hn::Rebind<std::int8_t, I32> narrow;
    const auto* bytes = reinterpret_cast<const std::int8_t*>(block) + index;
    for (std::size_t k = 0; k < kVectors; ++k)
      values[k] = hn::ConvertTo(F32(), hn::PromoteTo(I32(), hn::LoadU(narrow, bytes + k * kLanes)));
  }
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_VECTORS

#ifdef TERSOR_QUANTIZE_FORMAT
TERSOR_QUANTIZE_FORMAT(Int8Format)
#endif
