// nvfp4 compared with a reference written from docs/reference/wire-format.md alone. The Python
// tests compare with torchao.

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"
#include "tests/support/small_floats.h"

#include <tersor/codecs/nvfp4.h>

#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Nvfp4, CodecConformance,
                         ::testing::Values(CodecCase{"nvfp4", 0.18}, CodecCase{"nvfp4+ef", 0.18}),
                         case_name);

constexpr std::size_t kNvfp4Block = Nvfp4Layout::kBlock;

/// The payload and the residual of p.
class ExpectedNvfp4 {
 public:
  ExpectedNvfp4(const std::vector<float>& p, const std::vector<float>& old)
      : payload(Nvfp4Layout{p.size()}.bytes()), residual(p.size()), layout_{p.size()} {
    float largest = 0;
    for (const float value : p)
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    whole_ = largest / 2688.0f < 0x1p-100f ? 0.0f : largest / 2688.0f;
    if (!p.empty()) std::memcpy(payload.data(), &largest, sizeof largest);
    for (std::size_t first = 0; first < p.size(); first += kNvfp4Block)
      add_block(p, old, first, std::min(first + kNvfp4Block, p.size()));
  }

  std::vector<std::byte> payload;
  std::vector<float> residual;

 private:
  void add_block(const std::vector<float>& p, const std::vector<float>& old, std::size_t first,
                 std::size_t end) {
    float most = 0;
    bool finite = true;
    for (std::size_t i = first; i < end; ++i) {
      finite &= std::isfinite(p[i]);
      most = std::max(most, std::fabs(p[i]));
    }
    std::byte& scale = payload[layout_.scales_offset() + first / kNvfp4Block];
    if (!finite) {
      scale = std::byte{0x7f};
      if (!old.empty()) std::copy(&old[first], &old[first] + (end - first), &residual[first]);
      return;
    }
    float inverse = 0, value = 0;
    if (whole_ != 0) {
      const float wanted = most / 6.0f / whole_;
      const unsigned code = kE4m3.nearest(std::clamp(wanted, 0x1p-6f, 448.0f), false);
      scale = static_cast<std::byte>(code);
      value = whole_ * static_cast<float>(kE4m3.value(code));
      inverse = 1.0f / whole_ / static_cast<float>(kE4m3.value(code));
    }
    for (std::size_t i = first; i < end; ++i) {
      const unsigned code = kE2m1.nearest(p[i] * inverse, std::signbit(p[i]));
      payload[layout_.codes_offset() + i / 2] |= static_cast<std::byte>(code << i % 2 * 4);
      residual[i] = p[i] - static_cast<float>(kE2m1.value(code)) * value;
    }
  }

  Nvfp4Layout layout_;
  float whole_;
};

TEST(Nvfp4, MatchesReferenceBytes) {
  for_each_isa([] {
    for (const char* spec : {"nvfp4", "nvfp4+ef"})
      for (const int power : {0, 8, -110})
        for (const std::size_t count : {0, 1, 15, 16, 17, 127, 129, 511, 7919, 70'001}) {
          CodecHarness harness(spec, {count}, {.threads = 2});
          std::vector<float> values = small_float_values(count, count + 1);
          for (float& value : values) {
            if (std::fabs(value) > 1e6f) value = 1.5f;  // would hide all other values
            value = std::ldexp(value, power);
          }
          harness.set_gradient(values);
          harness.words = {.gradient_factor = 0.3f, .residual_factor = 0.7f};
          harness.set_residual(gaussian(count, 3, 0x1p-20f));
          const GuardedBytes frame = harness.encode();
          const bool has_states = harness.has_states();
          const ExpectedNvfp4 expected(harness.sent(),
                                       has_states ? harness.residual_in() : std::vector<float>{});
          ASSERT_TRUE(same_bytes(payload_of(frame), expected.payload)) << spec << count;
          ASSERT_TRUE(!has_states || same_values(harness.residual_out(), expected.residual));
        }
  });
}

TEST(Nvfp4, EveryCodeAndScaleDecodesToItsValue) {
  for_each_isa([] {
    constexpr std::size_t kCount = 256 * kNvfp4Block;
    CodecHarness harness("nvfp4", {kCount});
    harness.set_gradient(std::vector<float>(kCount, 3.7f));
    GuardedBytes frame = harness.encode();
    const Nvfp4Layout layout{kCount};
    std::byte* payload = frame.span().data() + sizeof(FrameHeader);
    for (std::size_t i = 0; i < 256; ++i) {
      payload[layout.scales_offset() + i] = static_cast<std::byte>(i);
      for (unsigned pair = 0; pair < kNvfp4Block / 2; ++pair)
        payload[layout.codes_offset() + i * kNvfp4Block / 2 + pair] =
            static_cast<std::byte>(2 * pair | (2 * pair + 1) << 4);
    }
    change_header(frame.span(), [](FrameHeader&) {});
    harness.decode({frame});
    const std::vector<float> found = harness.output();
    for (std::size_t i = 0; i < kCount; ++i) {
      const auto scale = static_cast<float>(kE4m3.value(static_cast<unsigned>(i / kNvfp4Block)));
      const auto code = static_cast<float>(kE2m1.value(i % kNvfp4Block));
      const float expected = code * (3.7f / 2688.0f * scale);
      ASSERT_TRUE(same_values({found[i]}, {expected})) << i << " " << expected;
    }
  });
}

TEST(Nvfp4, ReduceMatchesReference) {
  for_each_isa([] {
    const std::size_t count = 70'001;
    CodecHarness harness("nvfp4+ef", {count}, {.threads = 2, .contributions = 6});
    std::vector<GuardedBytes> frames;
    for (std::uint64_t rank = 0; rank < 6; ++rank) {
      harness.draw(rank);
      frames.push_back(harness.encode());
    }
    harness.decode(frames);
    std::vector<float> sum = harness.output();
    const std::vector<float> residual = harness.residual_in();
    for (std::size_t i = 0; i < count; ++i) sum[i] += residual[i];
    const ExpectedNvfp4 expected(sum, residual);
    const GuardedBytes reduced = harness.reduce(frames);
    EXPECT_TRUE(same_bytes(payload_of(reduced), expected.payload));
    EXPECT_TRUE(same_values(harness.residual_out(), expected.residual));
  });
}

TEST(Nvfp4, NonFiniteValuePoisonsOnlyItsBlock) {
  for_each_isa([] {
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY})
      for (const bool in_place : {false, true}) {
        CodecHarness harness("nvfp4+ef", {300});
        if (in_place) harness.share_residuals();
        std::vector<float> gradient(300, 1.0f);
        gradient[kNvfp4Block + 3] = bad;
        gradient[kNvfp4Block + 4] = 2.0f;  // finite values of the block count for the segment
        harness.set_gradient(gradient);
        const std::vector<float> before = harness.residual_in();
        const ExpectedNvfp4 expected(harness.sent(), before);
        const GuardedBytes frame = harness.encode();
        EXPECT_TRUE(same_bytes(payload_of(frame), expected.payload));
        EXPECT_TRUE(same_values(harness.residual_out(), expected.residual));
        harness.decode({frame});
        const std::vector<float> decoded = harness.output();
        for (std::size_t i = 0; i < decoded.size(); ++i)
          ASSERT_EQ(std::isnan(decoded[i]), i / kNvfp4Block == 1) << i;
      }
  });
}

TEST(Nvfp4, ZerosAndTinySegmentsStayInTheResidual) {
  for (const float scale : {0.0f, 0x1p-100f}) {
    CodecHarness harness("nvfp4+ef", {300}, {.scale = scale});
    harness.set_residual(std::vector<float>(300, 0.0f));
    harness.decode({harness.encode()});
    EXPECT_EQ(harness.output(), std::vector<float>(300, 0.0f));
    EXPECT_TRUE(same_values(harness.residual_out(), harness.sent()));
  }
}

}  // namespace
}  // namespace tersor::test
