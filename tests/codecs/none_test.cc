// Properties of the codec none only.

#include "tests/support/codec_conformance.h"

#include <tersor/codecs/none.h>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(None, CodecConformance,
                         ::testing::Values(CodecCase{"none", 0}, CodecCase{"none+ef", 0}),
                         case_name);

TEST(None, PayloadEqualsGradient) {
  for (const Dtype dtype : kGradientDtypes) {
    CodecHarness harness("none", {100, 7}, {.dtype = dtype});
    const GuardedBytes frame = harness.encode();
    const std::size_t bytes = ValuesLayout{100, dtype}.values_bytes();
    const ConstByteSpan payload = frame.span().subspan(sizeof(FrameHeader));
    const ConstValueSpan gradient = harness.encode_call().gradients[0];
    EXPECT_TRUE(same_bytes(payload.first(bytes), {gradient.pointer(), bytes}));
    EXPECT_EQ(payload.size(), (ValuesLayout{100, dtype}.bytes() + ValuesLayout{7, dtype}.bytes()));
  }
}

TEST(None, Bf16FeedbackKeepsRoundingError) {
  CodecHarness harness("none+ef", {1000}, {.dtype = Dtype::kBf16});
  harness.decode({harness.encode()});
  const std::vector<float> sent = harness.sent(), decoded = harness.output();
  const std::vector<float> residual = harness.residual_out();
  for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(decoded[i] + residual[i], sent[i]) << i;
}

TEST(None, EncodesRawValuesInPlace) {
  CodecHarness harness("none", {1000});
  const std::vector<float> before = harness.gradient();
  const EncodeCall call = harness.encode_call();
  const ValueSpan own(const_cast<std::byte*>(call.gradients[0].pointer()), 1000, Dtype::kF32,
                      default_memory());
  harness.codec().encode_native(call, 1.0f, own);
  EXPECT_EQ(harness.gradient(), before);
  harness.codec().encode_native(call, 0.5f, own);
  std::vector<float> half = before;
  for (float& value : half) value *= 0.5f;
  EXPECT_EQ(harness.gradient(), half);
}

TEST(None, NativeSumIsFirstExchangeWithoutFeedback) {
  const auto exchanges = CodecHarness("none", {9}).plan().rounds.at(0).exchanges;
  EXPECT_EQ(exchanges, (std::vector{Exchange::kNativeSum, Exchange::kTwoShot, Exchange::kGather}));
  const auto with_feedback = CodecHarness("none+ef", {9}).plan().rounds.at(0).exchanges;
  EXPECT_EQ(with_feedback, (std::vector{Exchange::kTwoShot, Exchange::kGather}));
}

}  // namespace
}  // namespace tersor::test
