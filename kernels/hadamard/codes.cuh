// Codes of 1 to 4 bits between rotated values in registers and planes of bits in a payload.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/rotation.cuh"
#include "kernels/device/units.cuh"
#include "kernels/hadamard/formulas.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

template <unsigned kBits>
using CodeBits = std::integral_constant<unsigned, kBits>;

template <class Visit>
TERSOR_DEVICE void visit_code_bits(unsigned bits, const Visit& visit) {
  if (bits == 1) return visit(CodeBits<1>{});
  if (bits == 2) return visit(CodeBits<2>{});
  if (bits == 3) return visit(CodeBits<3>{});
  visit(CodeBits<4>{});
}

/// Where the words of one block's planes lie, behind the segment's sections.
TERSOR_DEVICE std::size_t plane_offset(const RotationPlace& place, unsigned bits) {
  const HadamardLayout layout{place.count, bits};
  return layout.planes_offset() + HadamardLayout{place.first, bits}.planes_bytes() +
         place.thread * sizeof(std::uint32_t);
}

/// y becomes values k · unit; returns the codes' bits by planes, bit i for value i.
template <unsigned kBits>
struct CodePlanes {
  std::uint32_t plane[kBits];

  TERSOR_DEVICE CodePlanes(RotatedValues& y, float inverse, float unit) : plane{} {
    using Steps = HadamardSteps<kBits>;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRotationValues; ++i) {
      if constexpr (kBits == 1) {
        const std::uint32_t sign = bits_of(y[i]) & 0x80000000u;
        plane[0] |= (sign ^ 0x80000000u) >> (31 - i);
        y[i] = float_of(bits_of(0.5f) | sign) * unit;
      } else {
        const float z = fused_multiply_add(y[i], inverse, Steps::kMiddle);
        const float sum = fminf(fmaxf(z, 0.0f), Steps::kMost) + kHadamardMagic;
        TERSOR_UNROLL
        for (unsigned j = 0; j < kBits; ++j) plane[j] |= (bits_of(sum) >> j & 1u) << i;
        y[i] = (sum - kHadamardMagic - Steps::kMiddle) * unit;
      }
    }
  }

  /// Nothing is written behind the segment's end; zeros where the block has no codes.
  template <class Warp>
  TERSOR_DEVICE void store_to(const Warp& warp, std::byte* sections, const RotationPlace& place,
                              bool coded) const {
    auto* to = sections + plane_offset(place, kBits);
    TERSOR_UNROLL
    for (unsigned j = 0; j < kBits; ++j) {
      const std::uint32_t word = transposed(warp, coded ? plane[j] : 0u);
      if (place.is_there())
        store(reinterpret_cast<std::uint32_t*>(to + j * HadamardLayout::kPlaneBytes), word);
    }
  }
};

/// w = fma(k, unit, w) with one frame's codes.
template <unsigned kBits, class Warp>
TERSOR_DEVICE void add_codes(const Warp& warp, const std::byte* sections,
                             const RotationPlace& place, float factor, RotatedValues& w) {
  constexpr float kHalves = 4194304.0f;  // 2^22, whose lowest bit counts 1/2
  std::uint32_t plane[kBits];
  std::uint16_t scale = 0;
  if (place.is_there())
    scale =
        load_input(reinterpret_cast<const std::uint16_t*>(sections) + place.first / kRotationBlock);
  const std::byte* from = sections + plane_offset(place, kBits);
  TERSOR_UNROLL
  for (unsigned j = 0; j < kBits; ++j) {
    const std::byte* words = from + j * HadamardLayout::kPlaneBytes;
    const std::uint32_t word =
        place.is_there() ? load_input(reinterpret_cast<const std::uint32_t*>(words)) : 0u;
    plane[j] = transposed(warp, word);
  }
  const float unit = hadamard_unit(scale, factor);
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) {
    std::uint32_t code = 0;
    TERSOR_UNROLL
    for (unsigned j = 0; j < kBits; ++j) code |= (plane[j] >> i & 1u) << (j + 1);
    const float k = float_of(bits_of(kHalves) | code) - (kHalves + HadamardSteps<kBits>::kMiddle);
    w[i] = fused_multiply_add(k, unit, w[i]);
  }
}

/// The frames' sum of one block. What is added to −0 stays as it is: the first frame's products.
template <unsigned kMost, class Warp>
TERSOR_DEVICE void sum_frames(const Warp& warp, const FrameList<kMost>& list, std::size_t offset,
                              unsigned bits, float factor, const RotationPlace& place,
                              const RotationSigns& signs, RotatedValues& w) {
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) w[i] = -0.0f;
  visit_code_bits(bits, [&]<unsigned kBits>(CodeBits<kBits>) {
    TERSOR_KEEP_LOOP
    for (unsigned index = 0; index < list.frames; ++index)
      add_codes<kBits>(warp, list.payload(index) + offset, place, factor, w);
  });
  rotate(warp, w);
  signs.flip(w);
}

}  // namespace tersor::kernels
