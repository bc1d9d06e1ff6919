// PreparedDeviceDelta gives the same bits as the CPU, finds faults before a write, and restores.

#include "tests/codecs/delta_versions.h"
#include "tests/gpu/device_memory.h"
#include "tests/support/errors.h"
#include "tests/support/grid.h"

#include <gtest/gtest.h>
#include <tersor/delta.h>
#include <tersor/error.h>

namespace tersor::test {
namespace {

/// Weights on the device.
struct DeviceWeights {
  explicit DeviceWeights(const std::vector<Bytes>& values) {
    for (const Bytes& bytes : values) buffers.push_back(to_device(bytes));
    for (const Buffer& buffer : buffers) spans.push_back(buffer.span());
  }
  std::vector<ConstByteSpan> base() const { return {spans.begin(), spans.end()}; }
  std::vector<Bytes> values() const {
    std::vector<Bytes> all;
    for (const Buffer& buffer : buffers) all.push_back(to_host(buffer));
    return all;
  }

  std::vector<Buffer> buffers;
  std::vector<ByteSpan> spans;
};

/// Weights of all dtypes with few, many, and almost only changed values.
Versions all_dtypes(std::size_t count) {
  Versions versions;
  for (const DeltaDtype dtype : kDeltaDtypes)
    for (const std::size_t every : {30, 2, 1}) {
      const std::size_t index = versions.tensors.size();
      versions.add(std::string(delta_dtype_name(dtype)) + std::to_string(every), dtype, count);
      fill(versions, index, every, every == 1 ? ~std::uint64_t{0} : 20);
    }
  versions.add("empty", DeltaDtype::kBf16, 0);
  versions.add("unchanged", DeltaDtype::kF32, 17'000);
  fill(versions, versions.tensors.size() - 1, 0);
  return versions;
}

TEST(DeltaOnADevice, WritesAndRestoresAllDtypes) {
  const Versions versions = all_dtypes(grid_is_small() ? 17'003 : 70'003);
  const Stream stream;
  for (const unsigned classes : {1, 2, 4}) {
    Bytes delta = versions.encode({.classes = classes});
    const DeviceWeights weights(versions.base);
    PreparedDeviceDelta prepared(versions.tensors, weights.base(), delta, stream.view());
    delta.clear();                                // the delta is not needed
    prepared.undo(weights.spans, stream.view());  // before a write: nothing
    ASSERT_EQ(weights.values(), versions.base);
    prepared.write(weights.spans, stream.view());
    ASSERT_EQ(weights.values(), versions.now);
    EXPECT_THROW(prepared.write(weights.spans, stream.view()), InvalidArgumentError);
    prepared.undo(weights.spans, stream.view());
    ASSERT_EQ(weights.values(), versions.base);
  }
}

TEST(DeltaOnADevice, WritesLongTensors) {
  Versions versions;
  versions.add("bf16", DeltaDtype::kBf16, 66 * kDeltaBlock + 1);
  versions.add("f64", DeltaDtype::kF64, 5 * kDeltaBlock);
  for (std::size_t i = 0; i < 2; ++i) fill(versions, i, 1000);
  const Stream stream;
  const DeviceWeights weights(versions.base);
  PreparedDeviceDelta prepared(versions.tensors, weights.base(), versions.encode({.classes = 1}),
                               stream.view());
  prepared.write(weights.spans, stream.view());
  EXPECT_EQ(weights.values(), versions.now);
}

TEST(DeltaOnADevice, RejectsInvalidInputBeforeWriting) {
  const Versions versions = all_dtypes(1000);
  const Bytes delta = versions.encode();
  const Stream stream;
  const DeviceWeights others(versions.now);
  EXPECT_THROW(PreparedDeviceDelta(versions.tensors, others.base(), delta, stream.view()),
               BaseMismatchError);
  EXPECT_EQ(others.values(), versions.now);
  const DeviceWeights weights(versions.base);
  EXPECT_THROW(
      PreparedDeviceDelta(versions.tensors, versions.spans(versions.base), delta, stream.view()),
      InvalidArgumentError);  // host memory
  PreparedDeviceDelta prepared(versions.tensors, weights.base(), delta, stream.view());
  std::vector<ByteSpan> shared = weights.spans;
  shared[1] = shared[0];
  EXPECT_THROW(prepared.write(shared, stream.view()), InvalidArgumentError);
  EXPECT_EQ(weights.values(), versions.base);
}

/// Forged deltas with right checksums of the frame: a result that the host accepts is the host's
/// result, and all other deltas are refused. No access leaves the memory of the call.
TEST(DeltaOnADevice, ForgedDeltasMatchHostOrFail) {
  Versions versions;
  versions.add("a", DeltaDtype::kBf16, 3000);
  fill(versions, 0, 20, 1000);
  const Stream stream;
  std::size_t accepted = 0;
  for (std::uint64_t seed = 0; seed < (grid_is_small() ? 60 : 600); ++seed) {
    Bytes bad = versions.encode({.classes = 1u << seed % 3});
    bad[64 + mixed(seed) % (bad.size() - 64)] ^= static_cast<std::byte>(1u << seed % 8);
    reseal(bad);
    const DeviceWeights weights(versions.base);
    try {
      PreparedDeviceDelta prepared(versions.tensors, weights.base(), bad, stream.view());
      prepared.write(weights.spans, stream.view());
      ++accepted;
      ASSERT_EQ(weights.values(), versions.applied(bad)) << seed;
    } catch (const Error&) {
      ASSERT_EQ(weights.values(), versions.base) << seed;
    }
  }
  EXPECT_LT(accepted, 10u);
}

}  // namespace
}  // namespace tersor::test
