// How blocks of 256 values are rotated: the words of random signs, on every device the same. What
// is done with them stands in kernels/host/rotation-inl.h and rotation.cuh.
#pragma once

#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr std::size_t kRotationBlock = 256;  // values that are rotated together
constexpr std::size_t kSignWords = kRotationBlock / 32;

/// Of the format, so that all ranks rotate alike and sums may be made before rotating back. The
/// words 4 to 7 of a block have the next key.
constexpr std::uint64_t kSignKey = 0x6861646d61726421u;

/// The signs of a range of blocks, the first of which begins at `first_index` in its parameter.
struct Signs {
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint64_t first_index = 0;
};

/// Words 4 · half to 4 · half + 3 of the block that begins at value `index` of its parameter; where
/// bit i mod 32 of word i / 32 is 1, value i changes its sign.
TERSOR_BODY PhiloxWords sign_words(const Signs& signs, std::uint64_t index, unsigned half) {
  return philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                  signs.step, signs.parameter}},
                kSignKey + half);
}

}  // namespace tersor::kernels
