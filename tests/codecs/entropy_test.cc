// entropy compared with a reference written from the format alone, and properties of entropy only.

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"

#include <tersor/buffer.h>
#include <tersor/codecs/entropy.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Entropy, CodecConformance,
                         ::testing::Values(CodecCase{"entropy", 0}, CodecCase{"entropy+ef", 0}),
                         case_name);

class Entropy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test_device() != nullptr) GTEST_SKIP() << "entropy encodes host memory only";
  }
};

using Words = std::vector<std::uint32_t>;  // the bits of values, one value per word

unsigned bits_of(Dtype dtype) { return dtype == Dtype::kF32 ? 32 : 16; }
unsigned exponent_bits(Dtype dtype) { return dtype == Dtype::kF16 ? 5 : 8; }
unsigned mantissa_bits(Dtype dtype) { return bits_of(dtype) - 1 - exponent_bits(dtype); }

/// Decodes the payload of one segment, bit by bit.
Words reference_decode(ConstByteSpan payload, std::size_t count, Dtype dtype) {
  const unsigned width = bits_of(dtype), mantissa = mantissa_bits(dtype), rest = mantissa + 1;
  const auto byte = [&](std::size_t at) { return static_cast<std::size_t>(payload[at]); };
  const auto padded16 = [](std::size_t bytes) { return (bytes + 15) / 16 * 16; };
  std::vector<std::size_t> table;
  for (std::size_t i = 0; i < byte(0); ++i) table.push_back(byte(1 + i));
  const std::set<std::size_t> listed(table.begin(), table.end());
  for (std::size_t i = 0; i < std::size_t{1} << exponent_bits(dtype); ++i)
    if (!listed.contains(i)) table.push_back(i);
  const std::size_t blocks = (count + 4095) / 4096, sizes = padded16(1 + byte(0));
  std::size_t at = sizes + padded16(2 * blocks) + padded16(8 * ((blocks - 1) / 64));
  Words values;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t n = std::min<std::size_t>(4096, count - 4096 * block);
    const std::size_t size = byte(sizes + 2 * block) | byte(sizes + 2 * block + 1) << 8;
    const auto bit = [&](std::size_t i) { return byte(at + i / 8) >> i % 8 & 1; };
    const std::size_t padded = (n + 63) / 64 * 64, low_bits = byte(at);
    const std::size_t planes = 32 + padded * (rest / 8 * 8);  // bits from here on
    std::size_t code = planes + padded * (rest % 8 + low_bits);
    for (std::size_t i = 0; i < n; ++i) {
      std::size_t value = 0, quotient = 0, rank = 0;
      if (size == 0x8000) {
        for (unsigned j = 0; j < width; ++j) value |= bit(width * i + j) << j;
      } else if (size != 0) {
        for (unsigned j = 0; j < rest; ++j)
          value |= (j < rest / 8 * 8 ? byte(at + 4 + j / 8 * padded + i) >> j % 8 & 1
                                     : bit(planes + (j - rest / 8 * 8) * padded + i))
                   << j;
        for (; bit(code) == 0; ++code) ++quotient;
        ++code;
        for (std::size_t j = 0; j < low_bits; ++j)
          rank |= bit(planes + (rest % 8 + j) * padded + i) << j;
        const std::size_t sign = value >> mantissa;
        value = (value & ((std::size_t{1} << mantissa) - 1)) | sign << (width - 1) |
                table.at(quotient << low_bits | rank) << mantissa;
      }
      values.push_back(static_cast<std::uint32_t>(value));
    }
    at += size == 0x8000 ? (n * width + 31) / 32 * 4 : 4 * size;
  }
  EXPECT_EQ(padded16(at), payload.size());
  return values;
}

/// Memory with these bits as values.
Buffer buffer_of(const Words& words, Dtype dtype) {
  Buffer buffer(words.size() * dtype_bytes(dtype));
  for (std::size_t i = 0; i < words.size(); ++i)
    std::memcpy(buffer.span().data() + i * dtype_bytes(dtype), &words[i], dtype_bytes(dtype));
  return buffer;
}

Words words_of(const Buffer& buffer, Dtype dtype) {
  Words words(buffer.bytes() / dtype_bytes(dtype));
  for (std::size_t i = 0; i < words.size(); ++i)
    std::memcpy(&words[i], buffer.span().data() + i * dtype_bytes(dtype), dtype_bytes(dtype));
  return words;
}

/// Encodes and decodes values. Both the codec and the reference must return every bit. Returns the
/// bytes of the payload.
std::size_t expect_same_bits(const Words& words, Dtype dtype, unsigned threads = 1) {
  const auto codec = make_codec("entropy");
  const Segment segment{.count = words.size()};
  Threads pool(threads);
  const Plan plan = codec->plan({.segments = {&segment, 1}, .dtype = dtype, .threads = threads});
  const Buffer values = buffer_of(words, dtype), frame(plan.frame_bytes),
               workspace(plan.workspace_bytes), back(values.bytes());
  const ConstValueSpan input = values.values(words.size(), dtype);
  const ValueSpan output = back.values(words.size(), dtype);
  Execution execution;
  execution.threads = &pool;
  execution.workspace = workspace.span();
  codec->encode({.segments = {&segment, 1}, .gradients = {&input, 1}, .execution = execution},
                frame.span());
  const ConstByteSpan used = frame.span().first(frame_bytes(frame.span()));
  codec->decode({.segments = {&segment, 1},
                 .frames = {&used, 1},
                 .outputs = {&output, 1},
                 .execution = execution});
  const ConstByteSpan payload = used.subspan(sizeof(FrameHeader));
  EXPECT_EQ(words_of(back, dtype), words);
  EXPECT_EQ(reference_decode(payload, words.size(), dtype), words);
  return payload.size();
}

Words random_words(std::size_t count, Dtype dtype, std::uint64_t seed) {
  Words words(count);
  for (std::size_t i = 0; i < count; ++i)
    words[i] = static_cast<std::uint32_t>(mixed(seed * count + i) >> (64 - bits_of(dtype)));
  return words;
}

/// Normal values with standard deviation 0.02, as weights have.
Words weight_words(std::size_t count, Dtype dtype) {
  GuardedValues values(gaussian(count, 17, 0.02f), dtype, 0, Memory::kHost);
  Words words(count);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(&words[i], values.span().pointer() + i * dtype_bytes(dtype), dtype_bytes(dtype));
  return words;
}

TEST_F(Entropy, EveryBitPatternRoundTrips) {
  for_each_isa([] {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      Words words(1 << 16), rare(1 << 16);
      for (std::uint32_t i = 0; i < words.size(); ++i) words[i] = i;
      // Each pattern in a neighbourhood of common values, so that no block is stored unchanged.
      rare = weight_words(rare.size(), dtype);
      for (std::uint32_t i = 0; i < rare.size(); i += 29) rare[i] = i;
      expect_same_bits(words, dtype);
      EXPECT_LT(expect_same_bits(rare, dtype), 2 * rare.size() * 93 / 100);
    }
    expect_same_bits(random_words(20'000, Dtype::kF32, 3), Dtype::kF32);
  });
}

TEST_F(Entropy, AnyCountRoundTrips) {
  for_each_isa([] {
    for (const Dtype dtype : kGradientDtypes)
      for (const std::size_t count : {1, 2, 3, 63, 64, 65, 130, 4095, 4096, 4097, 70'001})
        for (const unsigned threads : {1, 3})
          expect_same_bits(weight_words(count, dtype), dtype, threads);
  });
}

TEST_F(Entropy, ManyBlocksRoundTrip) {
  expect_same_bits(weight_words(131 * 4096 + 7, Dtype::kBf16), Dtype::kBf16, 3);
}

TEST_F(Entropy, WeightsCompressBelowTargetBits) {
  const std::size_t count = 1 << 18;
  const auto bits = [&](Dtype dtype) {
    return 8.0 * static_cast<double>(expect_same_bits(weight_words(count, dtype), dtype)) /
           static_cast<double>(count);
  };
  EXPECT_LT(bits(Dtype::kBf16), 10.7);
  EXPECT_LT(bits(Dtype::kF16), 13.7);
  EXPECT_LT(bits(Dtype::kF32), 26.7);
}

TEST_F(Entropy, IncompressibleValuesAddLittleOverhead) {
  for (const Dtype dtype : kGradientDtypes) {
    const std::size_t count = 100'000, plain = count * dtype_bytes(dtype);
    EXPECT_LE(expect_same_bits(random_words(count, dtype, 5), dtype), plain + 256 + 64);
  }
}

TEST_F(Entropy, ZeroBlocksTakeNoBytes) {
  Words words(5 * 4096);
  EXPECT_EQ(expect_same_bits(words, Dtype::kBf16), 32u);
  words[4096] = 0x8000;  // -0 is not +0
  EXPECT_GT(expect_same_bits(words, Dtype::kBf16), 32u + 4096);
}

TEST_F(Entropy, ExponentsAbsentFromSampledBlocksRoundTrip) {
  Words words = weight_words(40 * 4096, Dtype::kBf16);
  for (std::size_t i = 4096; i < 16 * 4096; i += 3) words[i] ^= 0x7f80;  // not in block 0, 16, 32
  expect_same_bits(words, Dtype::kBf16);
}

TEST_F(Entropy, SumsAndResidualsEqualCodecNone) {
  for_each_isa([] {
    for (const Dtype dtype : kGradientDtypes)
      for (const char* suffix : {"", "+ef"}) {
        CodecHarness none(std::string("none") + suffix, {9000, 70}, {.dtype = dtype});
        CodecHarness entropy(std::string("entropy") + suffix, {9000, 70}, {.dtype = dtype});
        std::vector<GuardedBytes> plain, coded;
        for (std::uint64_t rank = 0; rank < 3; ++rank) {
          none.draw(rank);
          entropy.draw(rank);
          plain.push_back(none.encode());
          coded.push_back(entropy.encode());
        }
        EXPECT_TRUE(same_values(entropy.residuals_out(), none.residuals_out()));
        for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd}) {
          none.decode(plain, mode, 0.3f);
          entropy.decode(coded, mode, 0.3f);
          EXPECT_TRUE(same_values(entropy.outputs(), none.outputs()));
        }
        none.decode({none.reduce(plain, 0.3f)});
        entropy.decode({entropy.reduce(coded, 0.3f)});
        EXPECT_TRUE(same_values(entropy.outputs(), none.outputs()));
        EXPECT_TRUE(same_values(entropy.residuals_out(), none.residuals_out()));
      }
  });
}

TEST_F(Entropy, RejectsForgedBlocksWithoutChangingSums) {
  CodecHarness harness("entropy", {9000}, {.dtype = Dtype::kBf16, .checksum = Checksum::kOff});
  const GuardedBytes good = harness.encode();
  GuardedBytes forged = good;
  const std::size_t end = forged.span().size() - 32;  // within the codes of the last block
  std::memset(forged.span().data() + end, 0, 4);
  const std::vector<float> before = gaussian(9000, 4);
  harness.set_output(before);
  const std::vector<float> marks = harness.output();
  const auto error = error_of<WireError>([&] { harness.decode({good, forged}, DecodeMode::kAdd); });
  EXPECT_NE(error.find("frame 1 of 2, segment 0: the unary codes"), std::string::npos) << error;
  EXPECT_TRUE(same_values(harness.output(), marks));
  EXPECT_THROW(harness.reduce({good, forged}), WireError);
  EXPECT_THROW(harness.decode({forged}), WireError);
  EXPECT_TRUE(std::ranges::all_of(harness.output(), [](float value) { return value != value; }));
}

}  // namespace
}  // namespace tersor::test
