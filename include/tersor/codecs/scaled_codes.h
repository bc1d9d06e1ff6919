/// The layout that all quantisers of blocks share: a scale for each block, then the codes.
#pragma once

#include <tersor/align.h>
#include <tersor/wire.h>

#include <cstddef>

namespace tersor {

/// Where the sections of one segment's payload lie, of a codec with one f32 scale for
/// `kBlockValues` values and codes of `kCodeBits` bits. CPU, CUDA and the tests all read this one
/// definition.
template <std::size_t kBlockValues, unsigned kCodeBits>
struct ScaledCodes {
  static constexpr std::size_t kBlock = kBlockValues;  ///< values that share a scale
  static constexpr unsigned kBits = kCodeBits;         ///< of a code
  std::size_t count;

  constexpr std::size_t blocks() const { return ceil_div(count, kBlock); }
  constexpr std::size_t scales_bytes() const { return blocks() * sizeof(float); }
  constexpr std::size_t codes_offset() const { return align_up(scales_bytes(), kSectionAlignment); }
  constexpr std::size_t codes_bytes() const { return ceil_div(count * kBits, 8); }
  constexpr std::size_t bytes() const {
    return codes_offset() + align_up(codes_bytes(), kSectionAlignment);
  }
};

}  // namespace tersor
