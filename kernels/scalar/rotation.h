// The random signs for rotating blocks of 256 values, identical on every device. The rotations are
// in kernels/host/rotation-inl.h and kernels/device/rotation.cuh.
#pragma once

#include "kernels/scalar/philox.h"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr std::size_t kRotationBlock = 256;  // values rotated together

/// The Philox key of the signs. The key is part of the format. Therefore all ranks rotate alike,
/// and sums may be computed before rotating back. Words 4 to 7 of a block use the next key.
constexpr std::uint64_t kSignKey = 0x6861646d61726421u;

/// The signs of a range of blocks. The member `first_index` is the index of the range's first value
/// in its parameter.
struct Signs {
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;
  std::uint64_t first_index = 0;
};

/// Returns words 4 · half to 4 · half + 3 of the block at value `index` of a parameter. If bit i
/// mod 32 of word i / 32 is set, value i changes sign.
TERSOR_BODY PhiloxWords sign_words(const Signs& signs, std::uint64_t index, unsigned half) {
  return philox({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                  signs.step, signs.parameter}},
                kSignKey + half);
}

}  // namespace tersor::kernels
