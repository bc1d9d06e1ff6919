// The conformance suite: error feedback, steps and inactive segments.

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>

namespace tersor::test {

void link_conformance_feedback() {}

namespace {

/// Rounding error of an addition, relative to the larger operand.
double sum_error(Dtype residual_dtype) { return residual_dtype == Dtype::kF32 ? 0x1p-23 : 0x1p-8; }

TEST_P(CodecConformance, DecodedPlusResidualEqualsSent) {
  if (!has_feedback()) GTEST_SKIP() << spec() << " has no feedback";
  for_each_isa([&] {
    for (const Dtype residual_dtype : {Dtype::kF32, Dtype::kBf16})
      for (const std::size_t count : {1, 257, 70'001}) {
        CodecHarness harness(spec(), {static_cast<std::size_t>(count)},
                             {.residual_dtype = residual_dtype});
        harness.words.gradient_factor = 0.5f;
        harness.words.residual_factor = 1.5f;
        harness.decode({harness.encode()});
        const std::vector<float> sent = harness.sent(), decoded = harness.output();
        const std::vector<float> residual = harness.residual_out();
        for (std::size_t i = 0; i < sent.size(); ++i) {
          const double error =
              sum_error(residual_dtype) * std::max(std::fabs(sent[i]), std::fabs(residual[i]));
          ASSERT_NEAR(static_cast<double>(decoded[i]) + residual[i], sent[i], error) << i;
        }
      }
  });
}

TEST_P(CodecConformance, InPlaceAndSeparateStatesAgree) {
  if (!has_feedback()) GTEST_SKIP() << spec() << " has no feedback";
  for_each_isa([&] {
    for (const Dtype residual_dtype : {Dtype::kF32, Dtype::kBf16}) {
      CodecHarness apart(spec(), {1000, 70'001}, {.residual_dtype = residual_dtype});
      CodecHarness in_place(spec(), {1000, 70'001}, {.residual_dtype = residual_dtype});
      in_place.share_residuals();
      const std::vector<float> before = apart.residual_in();
      EXPECT_TRUE(same_bytes(apart.encode().span(), in_place.encode().span()));
      EXPECT_TRUE(same_values(apart.residuals_out(), in_place.residuals_out()));
      EXPECT_TRUE(same_values(apart.residual_in(), before));
      EXPECT_TRUE(apart.intact() && in_place.intact());
    }
  });
}

TEST_P(CodecConformance, ResidualsAreSentEventually) {
  if (!has_feedback()) GTEST_SKIP() << spec() << " has no feedback";
  const std::size_t count = 3000;
  CodecHarness harness(spec(), {count});
  harness.share_residuals();
  harness.set_residual(std::vector<float>(count, 0.0f));
  std::vector<double> given(count), received(count);
  for (int step = 0; step < 50; ++step) {
    harness.set_gradient(gaussian(count, 1000 + step));
    const std::vector<float> gradient = harness.gradient();
    harness.decode({harness.encode()});
    const std::vector<float> decoded = harness.output();
    for (std::size_t i = 0; i < count; ++i) {
      given[i] += gradient[i];
      received[i] += decoded[i];
    }
  }
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_NEAR(received[i] + harness.residual_out()[i], given[i], 1e-4) << i;
}

TEST_P(CodecConformance, InactiveSegmentsSendZerosAndKeepTheirState) {
  const std::uint32_t off = 0, on = 1;
  for_each_isa([&] {
    for (const bool shares : {false, true}) {
      CodecHarness harness(spec(), {300, 70'001, 300});
      if (shares) harness.share_residuals();
      harness.segments[0].active = &on;
      harness.segments[1].active = &off;
      const std::vector<float> before = harness.residual_in(1);
      harness.decode({harness.encode()});
      EXPECT_EQ(harness.output(1), std::vector<float>(70'001, 0.0f));
      EXPECT_TRUE(!has_feedback() || same_values(harness.residual_out(1), before));
      CodecHarness active(spec(), {300, 70'001, 300});
      active.decode({active.encode()});
      EXPECT_TRUE(same_values(active.output(0), harness.output(0)));
      EXPECT_TRUE(same_values(active.output(2), harness.output(2)));
      EXPECT_TRUE(harness.intact());
    }
  });
}

TEST_P(CodecConformance, WritesWordsOfTheNextStep) {
  CodecHarness harness(spec(), {300});
  harness.words = {.step = 41, .gradient_factor = 2, .residual_factor = 3, .overflows = 9};
  StateWords next;
  EncodeCall call = harness.encode_call();
  call.words_out = &next;
  harness.encode(call);
  EXPECT_EQ(next.step, 42u);
  EXPECT_EQ(next.gradient_factor, 2.0f);
  EXPECT_EQ(next.residual_factor, 3.0f);
  EXPECT_EQ(next.overflows, 9u);
  EXPECT_EQ(harness.words.step, 41u);
  call.words_out = &harness.words;  // in place
  harness.encode(call);
  EXPECT_EQ(harness.words.step, 42u);
}

TEST_P(CodecConformance, UsesStepOfTheCallWithoutWords) {
  CodecHarness harness(spec(), {3000});
  harness.words.step = 5;
  const GuardedBytes with_words = harness.encode();
  EncodeCall call = harness.encode_call();
  call.words = nullptr;
  call.random.step = 5;
  EXPECT_TRUE(same_bytes(harness.encode(call).span(), with_words.span()));
}

}  // namespace
}  // namespace tersor::test
