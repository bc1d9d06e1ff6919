// mxfp8 compared with a reference written from docs/reference/wire-format.md alone: the value of
// every code is listed, and a value takes the nearest code. The Python tests compare with torchao.

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"
#include "tests/support/small_floats.h"

#include <tersor/codecs/mxfp8.h>

#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Mxfp8, CodecConformance,
                         ::testing::Values(CodecCase{"mxfp8", 0.125}, CodecCase{"mxfp8+ef", 0.125},
                                           CodecCase{"mxfp8:elements=e5m2", 0.125},
                                           CodecCase{"mxfp8:elements=e5m2+ef", 0.125}),
                         case_name);

constexpr std::size_t kMxfp8Block = Mxfp8Layout::kBlock;

struct Mxfp8Case {
  const char* spec;
  SmallFloat codes;
  int largest_power;  // of the largest value of the codes
};

const Mxfp8Case kMxfp8Cases[] = {{"mxfp8", kE4m3, 8}, {"mxfp8:elements=e5m2", kE5m2, 15}};

/// The payload and the residual of p.
struct ExpectedMxfp8 {
  ExpectedMxfp8(const Mxfp8Case& format, const std::vector<float>& p, const std::vector<float>& old)
      : payload(Mxfp8Layout{p.size()}.bytes()), residual(p.size()) {
    const Mxfp8Layout layout{p.size()};
    for (std::size_t first = 0; first < p.size(); first += kMxfp8Block) {
      const std::size_t end = std::min(first + kMxfp8Block, p.size());
      double most = 0;
      bool finite = true;
      for (std::size_t i = first; i < end; ++i) {
        finite &= std::isfinite(p[i]);
        most = std::max(most, std::fabs(double{p[i]}));
      }
      int power = most == 0 ? -127 : std::max(std::ilogb(most) - format.largest_power, -127);
      if (most < 0x1p-126) power = -127;  // subnormal
      payload[first / kMxfp8Block] = static_cast<std::byte>(finite ? power + 127 : 255);
      for (std::size_t i = first; i < end; ++i) {
        if (!finite) {
          residual[i] = old.empty() ? 0.0f : old[i];
          continue;
        }
        const unsigned code = format.codes.nearest(std::ldexp(double{p[i]}, -std::max(power, -126)),
                                                   std::signbit(p[i]));
        payload[layout.codes_offset() + i] = static_cast<std::byte>(code);
        residual[i] = static_cast<float>(p[i] - std::ldexp(format.codes.value(code), power));
      }
    }
  }

  std::vector<std::byte> payload;
  std::vector<float> residual;
};

TEST(Mxfp8, MatchesReferenceBytes) {
  for_each_isa([] {
    for (const Mxfp8Case& format : kMxfp8Cases)
      for (const char* feedback : {"", "+ef"})
        for (const std::size_t count : {0, 1, 31, 32, 33, 127, 129, 511, 7919, 70'001}) {
          CodecHarness harness(format.spec + std::string(feedback), {count});
          harness.set_gradient(small_float_values(count, count + 1));
          harness.words = {.gradient_factor = 0.3f, .residual_factor = 0.7f};
          harness.set_residual(gaussian(count, 3, 0x1p-20f));
          const GuardedBytes frame = harness.encode();
          const bool has_states = harness.has_states();
          const ExpectedMxfp8 expected(format, harness.sent(),
                                       has_states ? harness.residual_in() : std::vector<float>{});
          ASSERT_TRUE(same_bytes(payload_of(frame), expected.payload)) << format.spec << count;
          ASSERT_TRUE(!has_states || same_values(harness.residual_out(), expected.residual));
        }
  });
}

TEST(Mxfp8, EveryCodeDecodesToItsValue) {
  for_each_isa([] {
    for (const Mxfp8Case& format : kMxfp8Cases) {
      CodecHarness harness(format.spec, {256 * 8});
      GuardedBytes frame = harness.encode();
      const std::vector<int> scales = {0, 1, 2, 100, 127, 150, 238, 255};
      std::byte* payload = frame.span().data() + sizeof(FrameHeader);
      for (std::size_t i = 0; i < 256 * 8; ++i) {
        payload[i / kMxfp8Block] = static_cast<std::byte>(scales[i / 256]);
        payload[Mxfp8Layout{256 * 8}.codes_offset() + i] = static_cast<std::byte>(i % 256);
      }
      change_header(frame.span(), [](FrameHeader&) {});
      harness.decode({frame});
      const std::vector<float> found = harness.output();
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double code = format.codes.value(i % 256);
        const double scale = scales[i / 256] == 255 ? NAN : std::ldexp(1, scales[i / 256] - 127);
        const auto expected = static_cast<float>(code * scale);
        ASSERT_TRUE(same_values({found[i]}, {expected})) << format.spec << i << " " << expected;
      }
    }
  });
}

TEST(Mxfp8, ReduceMatchesReference) {
  for_each_isa([] {
    for (const Mxfp8Case& format : kMxfp8Cases) {
      const std::size_t count = 3001;
      CodecHarness harness(format.spec + std::string("+ef"), {count});
      std::vector<GuardedBytes> frames;
      std::vector<float> sum(count);
      for (std::uint64_t rank = 0; rank < 6; ++rank) {
        harness.draw(rank);
        frames.push_back(harness.encode());
        harness.decode({frames.back()});
        const std::vector<float> decoded = harness.output();
        for (std::size_t i = 0; i < count; ++i) sum[i] += decoded[i];
      }
      const std::vector<float> residual = harness.residual_in();
      for (std::size_t i = 0; i < count; ++i) sum[i] += residual[i];
      const ExpectedMxfp8 expected(format, sum, residual);
      const GuardedBytes reduced = harness.reduce(frames);
      EXPECT_TRUE(same_bytes(payload_of(reduced), expected.payload));
      EXPECT_TRUE(same_values(harness.residual_out(), expected.residual));
    }
  });
}

TEST(Mxfp8, NonFiniteValuePoisonsOnlyItsBlock) {
  for_each_isa([] {
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY})
      for (const bool in_place : {false, true}) {
        CodecHarness harness("mxfp8+ef", {300});
        if (in_place) harness.share_residuals();
        std::vector<float> gradient(300, 1.0f);
        gradient[kMxfp8Block + 3] = bad;
        harness.set_gradient(gradient);
        const std::vector<float> before = harness.residual_in();
        const ExpectedMxfp8 expected(kMxfp8Cases[0], harness.sent(), before);
        const GuardedBytes frame = harness.encode();
        EXPECT_TRUE(same_bytes(payload_of(frame), expected.payload));
        EXPECT_TRUE(same_values(harness.residual_out(), expected.residual));
        harness.decode({frame});
        const std::vector<float> decoded = harness.output();
        for (std::size_t i = 0; i < decoded.size(); ++i)
          ASSERT_EQ(std::isnan(decoded[i]), i / kMxfp8Block == 1) << i;
      }
  });
}

}  // namespace
}  // namespace tersor::test
