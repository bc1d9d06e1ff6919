// docs/reference/wire-format.md on NaNs, unread bytes, and old residuals.
#include "tests/support/codec_conformance.h"
#include "tests/support/codec_harness.h"
#include "tests/support/reference.h"

#include <tersor/codecs/topk.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

constexpr std::uint16_t kNan = 0x7fff, kOtherNan = 0xffc1;  // of bf16 and f16
constexpr std::uint32_t kWideNan = 0x7fc00000, kOtherWideNan = 0xffc00001;

template <typename Bits>
Bits bits_at(const std::byte* values, std::size_t index) {
  Bits bits;
  std::memcpy(&bits, values + index * sizeof bits, sizeof bits);
  return bits;
}

template <typename Bits>
void put_bits(ConstValueSpan values, std::size_t index, Bits bits) {
  std::memcpy(const_cast<std::byte*>(values.pointer()) + index * sizeof bits, &bits, sizeof bits);
}

TEST(Format, DecodeWritesCanonical16BitNan) {
  for_each_isa([] {
    for (const char* spec :
         {"none", "bf16", "f16", "int8", "int4", "mxfp8", "nvfp4", "topk:density=1"})
      for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
        CodecHarness harness(spec, {100}, {.dtype = dtype});
        const EncodeCall call = harness.encode_call();
        put_bits(call.gradients[0], 5, kOtherNan);
        const std::vector<GuardedBytes> frames(1, harness.encode(call));
        harness.decode(frames);
        const auto output = harness.decode_call(frames).outputs[0];
        EXPECT_EQ(bits_at<std::uint16_t>(output.pointer(), 5), kNan) << spec << dtype_name(dtype);
      }
  });
}

TEST(Format, NoneCopiesNansButReduceCanonicalizesThem) {
  for_each_isa([] {
    CodecHarness wide("none", {100}), narrow("none", {100}, {.dtype = Dtype::kBf16});
    put_bits(wide.encode_call().gradients[0], 5, kOtherWideNan);
    put_bits(narrow.encode_call().gradients[0], 5, kOtherNan);
    const GuardedBytes a = wide.encode(), b = narrow.encode();
    const auto payload = [](const GuardedBytes& frame) {
      return frame.span().data() + sizeof(FrameHeader);
    };
    EXPECT_EQ(bits_at<std::uint32_t>(payload(a), 5), kOtherWideNan);
    EXPECT_EQ(bits_at<std::uint16_t>(payload(b), 5), kOtherNan);
    EXPECT_EQ(bits_at<std::uint32_t>(payload(wide.reduce({a})), 5), kWideNan);
    EXPECT_EQ(bits_at<std::uint16_t>(payload(narrow.reduce({b})), 5), kNan);
  });
}

TEST(Format, NanBitsInBf16Residuals) {
  const std::pair<const char*, std::uint16_t> selected[] = {
      {"none+ef", kNan},       {"bf16+ef", kNan},      {"f16+ef", kNan},
      {"int8+ef", kOtherNan},  {"int4+ef", kOtherNan}, {"mxfp8+ef", kOtherNan},
      {"nvfp4+ef", kOtherNan}, {"topk+ef", kOtherNan}};
  for_each_isa([&] {
    for (const auto& [spec, bits] : selected)
      for (const bool in_place : {false, true}) {
        CodecHarness harness(spec, {1000}, {.residual_dtype = Dtype::kBf16});
        if (in_place) harness.share_residuals();
        const EncodeCall call = harness.encode_call();
        put_bits(call.states[0].residual_in, 5, kOtherNan);
        harness.encode(call);
        const std::byte* residual = call.states[0].residual_out.pointer();
        EXPECT_EQ(bits_at<std::uint16_t>(residual, 5), bits) << spec << in_place;
      }
  });
}

/// Payload bytes without meaning.
struct Idle {
  const char* spec;
  std::size_t count;
  std::vector<std::pair<std::size_t, std::size_t>> bytes;  // begin and end
  std::byte bits{0xff};
};

/// Encodes a gradient with three non-zero values and checks the unread bytes.
void expect_nobody_looks(const Idle& idle) {
  CodecHarness harness(idle.spec, {idle.count});
  std::vector<float> gradient(idle.count);
  gradient[1] = 3;
  gradient[3] = -2;
  gradient[idle.count - 1] = 1;
  harness.set_gradient(gradient);
  const GuardedBytes clean = harness.encode();
  GuardedBytes marked = clean;
  for (const auto& [first, last] : idle.bytes)
    for (std::size_t i = first; i < last; ++i) marked.span()[sizeof(FrameHeader) + i] |= idle.bits;
  change_header(marked.span(), [](FrameHeader&) {});
  EXPECT_FALSE(same_bytes(clean.span(), marked.span()));
  harness.decode({clean});
  const std::vector<float> expected = harness.output();
  harness.decode({marked});
  EXPECT_EQ(harness.output(), expected) << idle.spec;
  if (harness.plan().rounds[0].exchanges.front() == Exchange::kGather) return;
  EXPECT_TRUE(same_bytes(harness.reduce({marked}).span(), harness.reduce({clean}).span()));
}

TEST(Format, PaddingAndUnusedBytesAreIgnored) {
  const TopkLayout f32{1000, 600, TopkValues::kF32}, int8{1000, 600, TopkValues::kInt8};
  const std::vector<Idle> idle = {
      {"none", 7, {{28, 32}}},
      {"bf16", 7, {{14, 16}}},
      {"int8", 7, {{4, 16}, {16 + 7, 32}}},
      {"int4", 7, {{4, 16}, {16 + 4, 32}}},
      {"mxfp8", 33, {{2, 16}, {16 + 33, 64}}},
      {"nvfp4", 17, {{4, 16}, {16 + 2, 32}, {32 + 9, 48}}},
      {"nvfp4", 17, {{32 + 8, 32 + 9}}, std::byte{0xf0}},
      {"int4", 7, {{16 + 3, 16 + 4}}, std::byte{0xf0}},  // after an odd count
      {"topk:density=0.6", 1000, {{8, 16}, {22, f32.values_offset()}}},
      {"topk:density=0.6", 1000, {{f32.values_offset() + 3 * 4, f32.bytes()}}},
      {"topk:density=0.6,values=int8", 1000, {{22, int8.scales_offset()}}},
      {"topk:density=0.6,values=int8", 1000, {{int8.scales_offset() + 4, int8.values_offset()}}},
      {"topk:density=0.6,values=int8", 1000, {{int8.values_offset() + 3, int8.bytes()}}},
  };
  for_each_isa([&] {
    for (const Idle& one : idle) expect_nobody_looks(one);
  });
}

/// Poisons a tensor in place. Holds the residuals before and after, and p.
struct Poisoned {
  Poisoned(Dtype residual_dtype, float residual_factor)
      : harness("topk+ef", {9000}, {.residual_dtype = residual_dtype, .scale = 1e6f}) {
    harness.share_residuals();
    harness.words = {.gradient_factor = 0.5f, .residual_factor = residual_factor};
    harness.set_residual(gaussian(9000, 8, 0.1f));
    std::vector<float> gradient = harness.gradient();
    gradient[kBad] = INFINITY;
    harness.set_gradient(gradient);
    before = harness.residual_in();
    p = harness.sent();
    harness.encode();
    after = harness.residual_in();
  }

  static constexpr std::size_t kBad = 8900;
  CodecHarness harness;
  std::vector<float> before, after, p;
};

TEST(Format, PoisonedSegmentRecomputesOldResiduals) {
  for_each_isa([] {
    const Poisoned tensor(Dtype::kF32, 1.5f);
    const std::vector<float> gradient = tensor.harness.gradient();
    EXPECT_NE(tensor.after, tensor.before);
    for (std::size_t i = 0; i < tensor.p.size(); ++i) {
      if (i == Poisoned::kBad) continue;
      ASSERT_EQ(tensor.after[i], (tensor.p[i] - 0.5f * gradient[i]) / 1.5f) << i;
      const float half_ulp = std::ldexp(1.0f, std::ilogb(tensor.p[i]) - 24);
      ASSERT_LE(std::fabs(tensor.after[i] - tensor.before[i]), 1.001f * half_ulp / 1.5f) << i;
    }
    EXPECT_EQ(tensor.after[Poisoned::kBad], tensor.before[Poisoned::kBad]);
  });
}

TEST(Format, PoisonedSegmentKeepsResidualsItCannotRecompute) {
  for_each_isa([] {
    for (const auto& [dtype, factor] : {std::pair{Dtype::kF32, 0.0f}, {Dtype::kBf16, 1.5f}}) {
      const Poisoned tensor(dtype, factor);
      EXPECT_EQ(tensor.after, tensor.before);
    }
  });
}

}  // namespace
}  // namespace tersor::test
