// PreparedDelta writes and restores every bit.

#include "tests/codecs/delta_versions.h"

#include <gtest/gtest.h>
#include <tersor/delta.h>

namespace tersor::test {
namespace {

/// Weights of all dtypes. A third of the tensors change in almost every bit, which gives plain
/// blocks. The version after `now` is `later`.
struct Model : Versions {
  Model() {
    for (const DeltaDtype dtype : kDeltaDtypes) {
      const std::size_t index = tensors.size();
      add(std::string(delta_dtype_name(dtype)), dtype, 40'001);
      fill(*this, index, index % 3 == 0 ? 1 : 30, index % 3 == 0 ? ~std::uint64_t{0} : 20);
    }
    add("empty", DeltaDtype::kBf16, 0);
    later = now;
    for (Bytes& bytes : later)
      for (std::size_t i = 0; i < bytes.size(); i += 1 + mixed(i) % 700) bytes[i] ^= std::byte{1};
  }
  Bytes encode_later() const { return delta_encode(tensors, spans(now), spans(later)); }

  std::vector<Bytes> later;
};

TEST(PreparedDelta, WritesAndRestoresAllDtypesAndPlainBlocks) {
  const Model model;
  Threads threads(3);
  for (const unsigned classes : {1, 2, 4})
    for (Threads* pool : {static_cast<Threads*>(nullptr), &threads}) {
      Bytes delta = model.encode({.classes = classes});
      std::vector<Bytes> values = model.base;
      const std::vector<ByteSpan> spans(values.begin(), values.end());
      PreparedDelta prepared(model.tensors, Versions::spans(values), delta, {.threads = pool});
      delta.clear();         // the delta is not needed
      prepared.undo(spans);  // before a write: nothing
      ASSERT_EQ(values, model.base);
      prepared.write(spans, pool);
      ASSERT_EQ(values, model.now);
      prepared.undo(spans);
      ASSERT_EQ(values, model.base);
      EXPECT_THROW(prepared.write(spans), InvalidArgumentError);
    }
}

TEST(PreparedDelta, RestoresTheBaseAfterTwoDeltas) {
  const Model model;
  std::vector<Bytes> values = model.base;
  const std::vector<ByteSpan> spans(values.begin(), values.end());
  PreparedDelta first(model.tensors, Versions::spans(values), model.encode());
  first.write(spans);
  PreparedDelta second(model.tensors, Versions::spans(values), model.encode_later());
  second.write(spans);
  ASSERT_EQ(values, model.later);
  second.undo(spans);
  ASSERT_EQ(values, model.now);
  values[2] = model.base[2];  // a mixture of versions
  first.undo(spans);
  EXPECT_EQ(values, model.base);
}

TEST(PreparedDelta, UsesFourBytesPerChangedBf16ValueAndAtMostACopy) {
  Versions versions;
  versions.add("a", DeltaDtype::kBf16, 1 << 18);
  const auto bytes = [&](std::size_t every) {
    fill(versions, 0, every);
    return PreparedDelta(versions.tensors, Versions::spans(versions.base), versions.encode())
        .bytes();
  };
  const std::size_t sparse = bytes(30), changed = delta_entries(versions.encode())[0].changed;
  EXPECT_GE(sparse, 4 * changed);
  EXPECT_LE(sparse, 4 * changed + 16 * 64);
  EXPECT_LE(bytes(1), (2u << 18) + 16 * 64);  // all values change
}

TEST(PreparedDelta, RejectsMismatchedWeights) {
  const Model model;
  std::vector<Bytes> values = model.base;
  std::vector<ByteSpan> spans(values.begin(), values.end());
  PreparedDelta prepared(model.tensors, Versions::spans(values), model.encode());
  const auto refused = [&](const std::vector<ByteSpan>& others) {
    EXPECT_THROW(prepared.write(others), InvalidArgumentError);
    EXPECT_THROW(prepared.undo(others), InvalidArgumentError);
    EXPECT_EQ(values, model.base);
  };
  refused({});
  spans[1] = spans[1].first(spans[1].size() - 2);
  refused(spans);
  const std::vector<ByteSpan> twins(values.begin(), values.end());
  std::vector<ByteSpan> shared = twins;
  shared[7] = shared[2];  // both have 16-bit values
  EXPECT_THROW(prepared.write(shared), InvalidArgumentError);
  EXPECT_EQ(values, model.base);
}

TEST(PreparedDelta, RejectsMismatchedBase) {
  const Model model;
  const Bytes delta = model.encode_later();  // of another base
  EXPECT_THROW(PreparedDelta(model.tensors, Versions::spans(model.base), delta), BaseMismatchError);
}

}  // namespace
}  // namespace tersor::test
