// Weight deltas: all bits come back, and faults are found before a write.

#include "kernels/delta/cpu.h"
#include "tests/codecs/delta_versions.h"
#include "tests/support/codec_harness.h"
#include "tests/support/errors.h"
#include "tests/support/reference.h"

#include <gtest/gtest.h>
#include <tersor/delta.h>
#include <tersor/isa.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

namespace tersor::test {
namespace {

/// Runs `body` with each instruction set of this machine.
template <typename Body>
void for_each_delta_isa(const Body& body) {
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    body();
  }
}

TEST(Delta, RoundTripIsBitExact) {
  for (const DeltaDtype dtype : kDeltaDtypes)
    for (const std::size_t count : {0, 1, 2, 63, 64, 65, 1000, 16'383, 16'384, 16'385, 50'001})
      for (const std::size_t every : {0, 1, 2, 30, 1000}) {
        SCOPED_TRACE(std::string(delta_dtype_name(dtype)) + " " + std::to_string(count) + " " +
                     std::to_string(every));
        Versions versions;
        versions.add("a", dtype, count);
        fill(versions, 0, every, every == 2 ? ~std::uint64_t{0} : 20);
        for (const unsigned classes : {0, 1, 2, 4}) {
          Bytes first;
          for_each_delta_isa([&] {
            const Bytes delta = versions.encode({.classes = classes});
            if (first.empty()) first = delta;
            ASSERT_EQ(delta, first);
            versions.check(delta);
            ASSERT_EQ(versions.applied(delta), versions.now) << classes;
          });
        }
      }
}

TEST(Delta, EveryStepBetweenPatternsRoundTrips) {
  Versions versions;
  versions.add("bf16", DeltaDtype::kBf16, 1 << 16);
  versions.add("f16", DeltaDtype::kF16, 1 << 16);
  for (std::size_t tensor = 0; tensor < 2; ++tensor)
    for (std::uint32_t i = 0; i < 1 << 16; ++i) {  // also NaNs, infinities and both zeros
      const auto other = static_cast<std::uint16_t>(i % 3 == 0 ? mixed(i) : i);
      std::memcpy(versions.base[tensor].data() + 2 * i, &i, 2);
      std::memcpy(versions.now[tensor].data() + 2 * i, &other, 2);
    }
  const std::uint16_t zeros[] = {0x8000, 0x0000};  // -0 becomes +0
  std::memcpy(versions.base[0].data() + 6, &zeros[0], 2);
  std::memcpy(versions.now[0].data() + 6, &zeros[1], 2);
  for (const unsigned classes : {1, 2, 4})
    EXPECT_EQ(versions.applied(versions.encode({.classes = classes})), versions.now);
}

Versions small_model() {
  Versions versions;
  versions.add("embedding", DeltaDtype::kBf16, 40'000);
  versions.add("scale", DeltaDtype::kF32, 3000);
  versions.add("steps", DeltaDtype::kInt64, 1);
  versions.add("norm", DeltaDtype::kE4m3, 700);
  versions.add("frozen", DeltaDtype::kF16, 20'000);
  versions.tensors[0].shape = {200, 200};
  versions.tensors[2].shape = {};
  const std::size_t densities[] = {30, 3, 1, 1, 0};
  for (std::size_t i = 0; i < 5; ++i) fill(versions, i, densities[i], i == 1 ? 50'000 : 20);
  return versions;
}

TEST(Delta, ResultIsIndependentOfThreads) {
  Versions versions;
  versions.add("a", DeltaDtype::kBf16, 70 * kDeltaBlock + 5);
  fill(versions, 0, 40);
  const Bytes delta = versions.encode();
  Threads threads(3);
  EXPECT_EQ(versions.encode({.threads = &threads}), delta);
  EXPECT_EQ(versions.applied(delta, {.threads = &threads}), versions.now);
}

float nearly_normal(std::uint64_t seed) {
  double sum = -6;
  for (std::uint64_t j = 0; j < 12; ++j)
    sum += static_cast<double>(mixed(12 * seed + j) >> 11) * 0x1p-53;
  return static_cast<float>(sum);
}

TEST(Delta, BytesPerChangedValueAreBounded) {
  struct Aim {
    float step;
    double least_share, most_share, one_class, four_classes;
  };
  for (const Aim& aim :
       {Aim{0.3e-6f, 0.01, 0.015, 1.35, 1.10}, Aim{1.2e-6f, 0.03, 0.05, 1.10, 0.88},
        Aim{7e-6f, 0.13, 0.17, 0.84, 0.70}}) {
    Versions versions;
    versions.add("weights", DeltaDtype::kBf16, 1 << 19);
    for (std::size_t i = 0; i < 1 << 19; ++i) {
      const float weight = 0.02f * nearly_normal(2 * i);
      const std::uint16_t old = narrow(weight, Dtype::kBf16),
                          now = narrow(weight + aim.step * nearly_normal(2 * i + 1), Dtype::kBf16);
      std::memcpy(versions.base[0].data() + 2 * i, &old, 2);
      std::memcpy(versions.now[0].data() + 2 * i, &now, 2);
    }
    const auto bytes = [&](unsigned classes) {
      const Bytes delta = versions.encode({.classes = classes});
      const DeltaEntry entry = delta_entries(delta).front();
      const double share = static_cast<double>(entry.changed) / static_cast<double>(entry.count);
      EXPECT_TRUE(aim.least_share < share && share < aim.most_share) << share;
      return static_cast<double>(delta.size()) / static_cast<double>(entry.changed);
    };
    EXPECT_LT(bytes(1), aim.one_class) << aim.step;
    EXPECT_LT(bytes(4), aim.four_classes) << aim.step;
    EXPECT_LE(bytes(0), 1.01 * bytes(4)) << aim.step;
  }
}

TEST(Delta, EntriesDescribeTheTensors) {
  const Versions versions = small_model();
  const std::vector<DeltaEntry> entries = delta_entries(versions.encode());
  ASSERT_EQ(entries.size(), versions.tensors.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    EXPECT_EQ(entries[i].tensor, versions.tensors[i]);
    std::size_t changed = 0;
    const std::size_t width = delta_dtype_bytes(versions.tensors[i].dtype);
    for (std::size_t at = 0; at < versions.base[i].size(); at += width)
      changed += std::memcmp(&versions.base[i][at], &versions.now[i][at], width) != 0;
    EXPECT_EQ(entries[i].changed, changed);
  }
  EXPECT_EQ(entries[4].bytes, 32u + 16u);
}

TEST(Delta, AppliesToReorderedTensors) {
  Versions versions = small_model();
  const Bytes delta = versions.encode();
  std::swap(versions.tensors[0], versions.tensors[3]);
  std::swap(versions.base[0], versions.base[3]);
  std::swap(versions.now[0], versions.now[3]);
  EXPECT_EQ(versions.applied(delta), versions.now);
}

TEST(Delta, BaseMismatchNamesTensorBeforeAnyWrite) {
  const Versions good = small_model();
  const Bytes delta = good.encode();
  for (std::size_t i = 0; i < good.tensors.size(); ++i) {
    Versions other = good;
    other.base[i].back() ^= std::byte{1};
    std::vector<Bytes> values = other.base;
    const std::vector<ByteSpan> spans(values.begin(), values.end());
    const std::string error =
        error_of<BaseMismatchError>([&] { delta_apply(other.tensors, spans, delta); });
    EXPECT_NE(error.find("tensor \"" + good.tensors[i].name + "\""), std::string::npos) << error;
    EXPECT_EQ(values, other.base);
  }
  EXPECT_THROW(delta_check(good.tensors, Versions::spans(good.now), delta), BaseMismatchError);
}

TEST(Delta, TrustedBaseIsNotChecked) {
  Versions versions = small_model();
  const Bytes delta = versions.encode();
  versions.base[4][0] ^= std::byte{1};  // an unchanged tensor
  versions.now[4][0] ^= std::byte{1};
  EXPECT_EQ(versions.applied(delta, {.base = DeltaBase::kTrust}), versions.now);
}

TEST(Delta, ReportsModelMismatch) {
  const Versions good = small_model();
  const Bytes delta = good.encode();
  const auto error = [&](const std::function<void(Versions&)>& change) {
    Versions other = good;
    change(other);
    return error_of<InvalidArgumentError>([&] { other.check(delta); });
  };
  const auto expect = [&](const char* words, const std::function<void(Versions&)>& change) {
    EXPECT_NE(error(change).find(words), std::string::npos) << error(change);
  };
  expect("no tensor \"scale\"", [](Versions& v) { v.tensors[1].name = "b"; });
  expect("the delta has no tensor \"more\"",
         [](Versions& v) { v.add("more", DeltaDtype::kF32, 3); });
  expect("bf16 (200, 200) in the delta, but f16 (200, 200)",
         [](Versions& v) { v.tensors[0].dtype = DeltaDtype::kF16; });
  expect("(100, 400)", [](Versions& v) { v.tensors[0].shape = {100, 400}; });
  expect("79999 bytes", [](Versions& v) { v.base[0].pop_back(); });
  expect("name \"norm\"", [](Versions& v) { v.tensors[1].name = "norm"; });
}

TEST(Delta, RejectsInvalidClassesAndOverlaps) {
  Versions versions = small_model();
  EXPECT_THROW(versions.encode({.classes = 3}), InvalidArgumentError);
  const Bytes delta = versions.encode();
  std::vector<ByteSpan> twice(versions.base.begin(), versions.base.end());
  versions.tensors[4] = {"tied", DeltaDtype::kBf16, {200, 200}};
  twice[4] = twice[0];
  const auto error =
      error_of<InvalidArgumentError>([&] { delta_apply(versions.tensors, twice, delta); });
  EXPECT_NE(error.find("overlaps"), std::string::npos) << error;
}

TEST(Delta, DamagedAndForgedDeltasNeverGiveWrongValues) {
  Versions versions;
  versions.add("a", DeltaDtype::kBf16, 3000);
  versions.add("b", DeltaDtype::kF32, 500);
  versions.add("c", DeltaDtype::kE5m2, 90);
  fill(versions, 0, 20);
  fill(versions, 1, 4, 1 << 20);
  fill(versions, 2, 2);
  const Bytes good = versions.encode({.classes = 2});
  std::size_t accepted = 0;
  for (std::uint64_t seed = 0; seed < 20'000; ++seed) {
    Bytes bad = good;
    for (std::uint64_t i = 0; i <= seed % 3; ++i) {
      const std::uint64_t random = mixed(seed * 8 + i);
      bad[random % bad.size()] ^= static_cast<std::byte>(1u << (random >> 40) % 8);
    }
    if (seed % 16 == 0) bad.resize(mixed(seed) % bad.size());
    if (bad == good) continue;
    ASSERT_THROW(versions.check(bad), WireError) << seed;
    reseal(bad);
    std::vector<Bytes> values = versions.base;
    const std::vector<ByteSpan> spans(values.begin(), values.end());
    try {
      delta_apply(versions.tensors, spans, bad);
      ++accepted;
      ASSERT_EQ(values, versions.now) << seed;
    } catch (const Error&) {
      ASSERT_EQ(values, versions.base) << seed;
    }
  }
  EXPECT_LT(accepted, 2000u);
}

TEST(Delta, ForgedBlocksStayInBounds) {
  for_each_delta_isa([] {
    const auto scratch = std::make_unique<kernels::DeltaScratch>();
    for (std::uint64_t seed = 0; seed < 3000; ++seed) {
      Versions versions;
      const DeltaDtype dtype = kDeltaDtypes[seed % std::size(kDeltaDtypes)];
      const std::size_t count = 1 + mixed(seed) % 3000;
      versions.add("a", dtype, count);
      fill(versions, 0, 1 + seed % 40, 1000);
      const kernels::DeltaBlock block{dtype,
                                      {1u << seed % 3, static_cast<unsigned>(seed % 16)},
                                      0,
                                      count,
                                      versions.base[0].data()};
      const auto coded = kernels::delta_encode_block(block, versions.now[0].data(), *scratch);
      if (coded.size == 0 || coded.size == kDeltaPlain) continue;
      Bytes words(scratch->words, scratch->words + 4 * coded.size);
      const auto decode = [&](Bytes& to) {
        const Bytes exact = words;  // at its exact size
        const kernels::DeltaChanges changes =
            kernels::delta_decode_block(block, exact.data(), exact.size() / 4, *scratch);
        if (changes.fault == nullptr)
          kernels::delta_write(delta_dtype_bytes(dtype), changes.changed, scratch->places,
                               reinterpret_cast<const std::byte*>(scratch->new_values), to.data());
        return changes;
      };
      Bytes values = versions.base[0];
      ASSERT_EQ(decode(values).fault, nullptr);
      ASSERT_EQ(values, versions.now[0]);
      words[mixed(seed + 1) % words.size()] ^= static_cast<std::byte>(1u << seed % 8);
      if (seed % 5 == 0) words.resize(4 * (1 + mixed(seed + 2) % (words.size() / 4)));
      values = versions.base[0];
      if (decode(values).fault != nullptr) {
        ASSERT_EQ(values, versions.base[0]);
      }
    }
  });
}

TEST(Delta, RejectsOversizedFields) {
  Versions versions;
  versions.add("a", DeltaDtype::kBf16, 3000);
  fill(versions, 0, 20);
  const Bytes good = versions.encode();
  const auto refused = [&](std::size_t at, std::uint64_t value, std::size_t bytes) {
    Bytes bad = good;
    std::memcpy(bad.data() + at, &value, bytes);
    reseal(bad);
    EXPECT_THROW(delta_entries(bad), WireError) << at;
  };
  refused(24, ~std::uint64_t{0}, 8);           // tensors
  refused(16, ~std::uint64_t{0} - 15, 8);      // directory
  refused(64 + 8, std::uint64_t{1} << 61, 8);  // a dimension
  refused(64 + 8, std::uint64_t{1} << 45, 8);
  refused(64, 0xffff, 2);                   // a name
  refused(64 + 3, 255, 1);                  // dimensions
  refused(64 + 24 + 8 + 4, 0xffffffff, 4);  // blocks
}

std::filesystem::path golden_folder() {
  const char* moved = std::getenv("TERSOR_TESTS");
  return (moved != nullptr ? std::filesystem::path(moved)
                           : std::filesystem::path(__FILE__).parent_path().parent_path()) /
         "golden" / "delta";
}

TEST(Delta, MatchesGoldenFiles) {
  const Versions versions = small_model();
  for (const unsigned classes : {1, 2, 4}) {
    const auto path = golden_folder() / ("classes-" + std::to_string(classes) + ".bin");
    const Bytes delta = versions.encode({.classes = classes});
    if (std::getenv("TERSOR_WRITE_GOLDEN") != nullptr)
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(delta.data()),
                 static_cast<std::streamsize>(delta.size()));
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const auto file_bytes = std::as_bytes(std::span(bytes));
    EXPECT_EQ(Bytes(file_bytes.begin(), file_bytes.end()), delta) << classes;
  }
}

}  // namespace
}  // namespace tersor::test
