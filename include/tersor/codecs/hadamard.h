/// hadamard: one to four bits per value. A random orthogonal matrix (Hadamard's, with random signs)
/// rotates each block. Rotated values are almost normally distributed for any input. The codec
/// quantises them in equal steps, scaled to the block's root mean square. Sources: Suresh et al.
/// 2017; DRIVE, Vargaftik et al. 2021.
///
/// Payload  scales  bf16[ceil(count / 256)], padded to 16 bytes
///          planes  for each block, `bits` planes of 32 bytes: plane j holds bit j of each code.
/// Value    T(code - (2^(bits - 1) - 1/2)) * scale / 16, with the block's signs; T is the fast
///          Hadamard transform.
/// Error    the relative squared error is 0.366, 0.120, 0.038, 0.012 with 1, 2, 3, 4 bits;
///          1 for a block below 2^-100.
///
/// A block with a NaN, an infinity or a magnitude of at least 2^120 decodes to NaN. Overflows are
/// therefore never hidden.
#pragma once

#include <tersor/align.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kHadamardCodecId = 8;

/// Options of the spec hadamard[:bits=1|2|3|4].
struct HadamardOptions {
  unsigned bits = 2;  ///< bits per code
};

/// The section offsets of a segment's hadamard payload, in bytes.
struct HadamardLayout {
  static constexpr std::size_t kBlock = 256;              ///< values rotated together
  static constexpr std::size_t kPlaneBytes = kBlock / 8;  ///< one bit of each value of a block
  std::size_t count;                                      ///< values of the segment
  unsigned bits;                                          ///< bits per code

  /// Returns the number of blocks.
  constexpr std::size_t blocks() const { return ceil_div(count, kBlock); }
  /// Returns the size of the scales, without padding.
  constexpr std::size_t scales_bytes() const { return blocks() * sizeof(std::uint16_t); }
  /// Returns the offset of the planes.
  constexpr std::size_t planes_offset() const {
    return align_up(scales_bytes(), kSectionAlignment);
  }
  /// Returns the size of the planes.
  constexpr std::size_t planes_bytes() const { return blocks() * bits * kPlaneBytes; }
  /// Returns the size of the payload.
  constexpr std::size_t bytes() const { return planes_offset() + planes_bytes(); }
};
static_assert(HadamardLayout{1024, 2}.bytes() == 16 + 256);
static_assert(HadamardLayout{257, 1}.planes_offset() == 16 &&
              HadamardLayout{257, 1}.bytes() == 16 + 64);
static_assert(HadamardLayout{2049, 4}.planes_offset() == 32);
static_assert(HadamardLayout{0, 3}.bytes() == 0);

}  // namespace tersor
