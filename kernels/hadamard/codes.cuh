// Conversion between rotated values in registers and 1-bit to 4-bit codes, stored as bit planes in
// a payload.
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

/// The input of decode and reduce.
struct HadamardSource {
  std::size_t offset;  // of the segment
  unsigned bits;
  float factor;
};

template <class Visit>
TERSOR_DEVICE void visit_code_bits(unsigned bits, const Visit& visit) {
  if (bits == 1) return visit(CodeBits<1>{});
  if (bits == 2) return visit(CodeBits<2>{});
  if (bits == 3) return visit(CodeBits<3>{});
  visit(CodeBits<4>{});
}

/// Return the offsets of one block's scale and planes within the segment's sections.
TERSOR_DEVICE std::size_t scale_offset(const RotationPosition& position) {
  return position.block() * sizeof(std::uint16_t);
}
TERSOR_DEVICE std::size_t plane_offset(const RotationPosition& position, unsigned bits) {
  return HadamardLayout{position.count, bits}.planes_offset() +
         position.block() * bits * HadamardLayout::kPlaneBytes +
         position.thread * sizeof(std::uint32_t);
}

/// Transposes codes to planes and back. Bit j of the four bits at position n of word w becomes bit
/// w at position n of word j.
TERSOR_DEVICE void transpose_codes(std::uint32_t (&word)[4]) {
  const auto swap = [](std::uint32_t& a, std::uint32_t& b, unsigned bits, std::uint32_t low) {
    const std::uint32_t old_a = a;
    a = (old_a & low) | (b << bits & ~low);
    b = (old_a >> bits & low) | (b & ~low);
  };
  swap(word[0], word[2], 2, 0x33333333u);
  swap(word[1], word[3], 2, 0x33333333u);
  swap(word[0], word[1], 1, 0x55555555u);
  swap(word[2], word[3], 1, 0x55555555u);
}

/// Encodes values y, stored by strided rows, and replaces y by the values k · unit.
template <unsigned kBits>
struct HadamardCodes {
  std::uint16_t row_codes[kRotationRows];  // four 4-bit codes per row, first code lowest

  TERSOR_DEVICE HadamardCodes(RotatedValues& y, float inverse, float unit) {
    TERSOR_UNROLL
    for (unsigned r = 0; r < kRotationRows; ++r) {
      std::uint32_t codes = 0;
      TERSOR_UNROLL
      for (unsigned q = kRotationRow; q-- > 0;)
        codes = append_code(codes, y[kRotationRow * r + q], inverse, unit);
      row_codes[r] = static_cast<std::uint16_t>(codes);
    }
  }

  /// Stores the codes, or zeros if the block has no codes. Nothing is written after the segment's
  /// end.
  template <class Warp>
  TERSOR_DEVICE void store_to(const Rotation<Warp>& rotation, std::byte* sections,
                              const RotationPosition& position, bool has_codes) const {
    Words128 row = rotation.codes_of_row(row_codes);
    transpose_codes(row.word);
    if constexpr (kBits == 1) row.word[0] = ~row.word[3];
    auto* to = reinterpret_cast<std::uint32_t*>(sections + plane_offset(position, kBits));
    TERSOR_UNROLL
    for (unsigned j = 0; j < kBits; ++j) row.word[j] = has_codes ? row.word[j] : 0u;
    if (!position.exists()) return;
    TERSOR_UNROLL
    for (unsigned j = 0; j < kBits; ++j) store(to + j * kRotationThreads, row.word[j]);
  }

 private:
  /// Appends one code. A 1-bit code is the highest of four bits, inverted.
  TERSOR_DEVICE static std::uint32_t append_code(std::uint32_t codes, float& y, float inverse,
                                                 float unit) {
    if constexpr (kBits == 1) {
      const std::uint32_t bits = bits_of(y);
      y = float_of((bits & 0x80000000u) | bits_of(0.5f * unit));
      return funnel_shift_left(codes, bits, 4);
    } else {
      using Steps = HadamardSteps<kBits>;
      constexpr float kCodes = static_cast<float>(1u << kBits);  // dividing by this is exact
      const float z = saturated_multiply_add(y, inverse / kCodes, Steps::kMiddle / kCodes);
      const float sum =
          fused_multiply_add(fminf(z, Steps::kMaxCode / kCodes), kCodes, kHadamardMagic);
      y = fused_multiply_add(sum - kHadamardMagic, unit, -(Steps::kMiddle * unit));  // exact
      return (codes << 4) + bits_of(sum);  // bits above the code land above bit 16
    }
  }
};

/// The codes of one row of a block in one frame.
template <unsigned kBits>
struct FrameCodes {
  std::uint32_t plane[kBits];
  std::uint16_t scale;

  TERSOR_DEVICE void load(const std::byte* sections, std::size_t scale_at, std::size_t planes_at) {
    scale = load_input(reinterpret_cast<const std::uint16_t*>(sections + scale_at));
    const auto* from = reinterpret_cast<const std::uint32_t*>(sections + planes_at);
    TERSOR_UNROLL
    for (unsigned j = 0; j < kBits; ++j) plane[j] = load_input(from + j * kRotationThreads);
  }

  /// w = fma(k, unit, w), stored as runs.
  TERSOR_DEVICE void add_to(RotatedValues& w, float factor) const {
    const float unit = hadamard_unit(scale, factor);
    std::uint32_t codes[4] = {};
    TERSOR_UNROLL
    for (unsigned j = 0; j < kBits; ++j) codes[j] = plane[j];
    transpose_codes(codes);
    TERSOR_UNROLL
    for (unsigned i = 0; i < 4; ++i) add_word(w + i, codes[i], unit);
  }

 private:
  /// Adds eight codes to every fourth value of w. A code at bit b of an f32 of 2^23 or more counts
  /// 2^b. The code becomes k without a shift if the code lies below bit 23 and 2^(23 − b) + 1/2 is
  /// an f32. Four of eight codes meet this condition. The other four meet the condition after
  /// swapping the word's halves.
  TERSOR_DEVICE static void add_word(float* w, std::uint32_t word, float unit) {
    constexpr std::uint32_t kMagic = 0x4b000000u, kCode = (1u << kBits) - 1;
    const std::uint32_t unswapped = select_bytes(word, kMagic, 0x7210);
    const std::uint32_t swapped = select_bytes(word, kMagic, 0x7032);
    TERSOR_UNROLL
    for (unsigned position = 0; position < 8; ++position) {
      const bool use_swapped = position == 0 || position > 4;
      const unsigned at = (use_swapped ? 4 * position + 16 : 4 * position) % 32;
      const float sum = float_of((use_swapped ? swapped : unswapped) & (0xff000000u | kCode << at));
      const float scaled = 1.0f / static_cast<float>(1u << at);
      const float k = fused_multiply_add(
          sum, scaled, -(kHadamardMagic * scaled + HadamardSteps<kBits>::kMiddle));
      w[4 * position] = fused_multiply_add(k, unit, w[4 * position]);
    }
  }
};

/// Sums one block over the frames, stored by contiguous rows. The sum starts at −0, which leaves
/// the first frame's products unchanged. Two frames are loaded while earlier frames are added.
template <unsigned kCapacity, class Warp>
TERSOR_DEVICE void sum_frames(const Rotation<Warp>& rotation, const FrameList<kCapacity>& list,
                              const HadamardSource& source, const RotationPosition& position,
                              RotatedValues& w) {
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRotationValues; ++i) w[i] = -0.0f;
  visit_code_bits(source.bits, [&]<unsigned kBits>(CodeBits<kBits>) {
    const std::size_t scale_at = source.offset + scale_offset(position);
    const std::size_t planes_at = source.offset + plane_offset(position, kBits);
    FrameCodes<kBits> next[2];
    next[0].load(list.payload(0), scale_at, planes_at);
    if (list.frames > 1) next[1].load(list.payload(1), scale_at, planes_at);
    TERSOR_KEEP_LOOP
    for (unsigned first = 0;; first += 2) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < 2; ++i) {
        const FrameCodes<kBits> codes = next[i];
        const unsigned index = first + i;
        if (index + 2 < list.frames) next[i].load(list.payload(index + 2), scale_at, planes_at);
        codes.add_to(w, source.factor);
        if (index + 1 == list.frames) return;
      }
    }
  });
  rotation.template rotate_runs<RowLayout::kContiguous>(w);
}

}  // namespace tersor::kernels
