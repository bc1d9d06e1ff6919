/// hadamard: one to four bits a value. Each block is rotated by a random orthogonal matrix
/// (Hadamard's, with random signs), after which its values look normally distributed whatever they
/// were, and is then quantised in equal steps scaled to its root mean square (Suresh et al. 2017;
/// DRIVE, Vargaftik et al. 2021).
///
/// Payload  scales  bf16[ceil(count / 256)], padded to 16 bytes
///          planes  for each block, `bits` planes of 32 bytes: plane j holds bit j of each code
/// Value    T(code - (2^(bits - 1) - 1/2)) * scale / 16, with the block's signs; T is the fast
///          Hadamard transform
/// Error    0.366, 0.120, 0.038, 0.012 of the energy is lost with 1, 2, 3, 4 bits; all of a block
///          below 2^-100
/// A block that holds a NaN, an infinity or a magnitude from 2^120 on decodes to NaN: an overflow
/// is never hidden.
#pragma once

#include <tersor/align.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor {

inline constexpr std::uint16_t kHadamardCodecId = 8;

/// Options of the spec: hadamard[:bits=1|2|3|4].
struct HadamardOptions {
  unsigned bits = 2;  ///< of a code
};

/// Where the sections of one segment's hadamard payload lie.
struct HadamardLayout {
  static constexpr std::size_t kBlock = 256;              ///< values that are rotated together
  static constexpr std::size_t kPlaneBytes = kBlock / 8;  ///< a bit of each value of a block
  std::size_t count;
  unsigned bits;

  constexpr std::size_t blocks() const { return ceil_div(count, kBlock); }
  constexpr std::size_t scales_bytes() const { return blocks() * sizeof(std::uint16_t); }
  constexpr std::size_t planes_offset() const {
    return align_up(scales_bytes(), kSectionAlignment);
  }
  constexpr std::size_t planes_bytes() const { return blocks() * bits * kPlaneBytes; }
  constexpr std::size_t bytes() const { return planes_offset() + planes_bytes(); }
};
static_assert(HadamardLayout{1024, 2}.bytes() == 16 + 256);
static_assert(HadamardLayout{257, 1}.planes_offset() == 16 &&
              HadamardLayout{257, 1}.bytes() == 16 + 64);
static_assert(HadamardLayout{2049, 4}.planes_offset() == 32);
static_assert(HadamardLayout{0, 3}.bytes() == 0);

}  // namespace tersor
