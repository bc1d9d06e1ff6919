// Long frames: sums of many frames use long pieces, and checksum columns need a third table of
// powers.

#include "kernels/scalar/checksum.h"
#include "tests/device/pair.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace tersor::test {
namespace {

/// A number of f32 values a little more than a group beyond the range of two tables of powers: 64
/// MiB.
constexpr std::size_t kPowers = kernels::ChecksumNumbers::kPowers;
constexpr std::size_t kGroups = kPowers * kPowers / kernels::kChecksumColumns;
constexpr std::size_t kLong = (kGroups + 1) * kernels::kChecksumGroup + 5;

TEST(LongFramesOnADevice, ChecksumsMatchHost) {
  Pair pair("none", {kLong}, {});
  pair.expect_same_encode();
  pair.expect_same_reduce(2);
}

TEST(LongFramesOnADevice, RejectsDamageNearTheEnd) {
  CodecHarness device("none", {kLong}, {.memory = Memory::kDevice});
  std::vector<GuardedBytes> frames;
  for (int i = 0; i < 2; ++i) frames.push_back(device.encode());
  frames[1].span()[frames[1].span().size() - 9] ^= std::byte{1};
  EXPECT_THROW(device.decode(frames), WireError);
}

}  // namespace
}  // namespace tersor::test
