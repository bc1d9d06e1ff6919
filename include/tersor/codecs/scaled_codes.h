/// The payload layout of all block quantisers: a scale per block, then the codes.
#pragma once

#include <tersor/align.h>
#include <tersor/wire.h>

#include <cstddef>

namespace tersor {

/// The section offsets of a segment's payload, in bytes, for a codec with a scale of type
/// `StoredScale` per `kBlockValues` values and codes of `kCodeBits` bits. `kFirstBytes` bytes of a
/// section for the whole segment come first. CPU code, CUDA code and tests share this definition.
template <std::size_t kBlockValues, unsigned kCodeBits, typename StoredScale = float,
          std::size_t kFirstBytes = 0>
struct ScaledCodes {
  static constexpr std::size_t kFirst = kFirstBytes;   ///< bytes before the scales, padded
  static constexpr std::size_t kBlock = kBlockValues;  ///< values per scale
  static constexpr unsigned kBits = kCodeBits;         ///< bits per code
  std::size_t count;                                   ///< values of the segment

  /// Returns the number of blocks.
  constexpr std::size_t blocks() const { return ceil_div(count, kBlock); }
  /// Returns the size of the scales, without padding.
  constexpr std::size_t scales_bytes() const { return blocks() * sizeof(StoredScale); }
  /// Returns the offset of the scales.
  constexpr std::size_t scales_offset() const {
    return count == 0 ? 0 : align_up(kFirst, kSectionAlignment);
  }
  /// Returns the offset of the codes.
  constexpr std::size_t codes_offset() const {
    return scales_offset() + align_up(scales_bytes(), kSectionAlignment);
  }
  /// Returns the size of the codes, without padding.
  constexpr std::size_t codes_bytes() const { return ceil_div(count * kBits, 8); }
  /// Returns the size of the payload.
  constexpr std::size_t bytes() const {
    return codes_offset() + align_up(codes_bytes(), kSectionAlignment);
  }
};

}  // namespace tersor
