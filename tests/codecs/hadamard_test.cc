// hadamard compared with a reference written from the format alone, and its properties.

#include "tests/support/codec_conformance.h"
#include "tests/support/hadamard_reference.h"
#include "tests/support/reference.h"

#include <tersor/codecs/hadamard.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace tersor::test {
namespace {

// Frames are summed in rotated space, with an error of 2^-20 of the norm.
constexpr double kSums = 0x1p-20;

INSTANTIATE_TEST_SUITE_P(Hadamard, CodecConformance,
                         ::testing::Values(CodecCase{"hadamard:bits=1", 1.0, kSums},
                                           CodecCase{"hadamard:bits=1+ef", 1.0, kSums},
                                           CodecCase{"hadamard", 0.5, kSums},
                                           CodecCase{"hadamard+ef", 0.5, kSums},
                                           CodecCase{"hadamard:bits=3+ef", 0.3, kSums},
                                           CodecCase{"hadamard:bits=4+ef", 0.2, kSums}),
                         case_name);

std::string spec_of(unsigned bits, const char* feedback = "") {
  return "hadamard:bits=" + std::to_string(bits) + feedback;
}

/// Blocks of values covering all corner cases.
std::vector<float> corner_values(std::size_t count) {
  std::vector<float> values = gaussian(count, count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const auto ones = static_cast<float>(i % 2 == 0 ? 1 : -1);
    switch (i / kRotatedValues % 16) {
      case 1:
        values[i] = i % 256 == 77 ? 3.0f : 0.0f;
        break;  // a spike
      case 2:
        values[i] = 0.7f;
        break;  // constant
      case 3:
        values[i] = ones;
        break;  // alternating
      case 4:
        values[i] = std::ldexp(values[i], -99);
        break;  // near the lower limit
      case 5:
        values[i] = std::ldexp(values[i], -140);
        break;  // below the lower limit
      case 6:
        values[i] = std::ldexp(values[i], 99);
        break;  //
      case 7:
        values[i] = ones * 0x1.fffffep119f;
        break;  // below the upper limit
      case 8:
        values[i] = i % 256 == 5 ? 0x1p120f : values[i];
        break;  // at the upper limit
      case 9:
        values[i] = i % 256 == 9 ? NAN : values[i];
        break;  //
      case 10:
        values[i] = i % 256 == 255 ? -INFINITY : values[i];
        break;
      case 11:
        values[i] = ones * 0.0f;
        break;  // zeros of both signs
      case 12:
        values[i] = i % 256 == 0 ? -0x1p-100f : -0.0f;
        break;  // at the lower limit
      case 13:
        values[i] = std::ldexp(values[i], static_cast<int>(mixed(i) % 200) - 110);
        break;
      case 14:
        values[i] = i % 256 < 2 ? 1.0f : 0x1p-149f;
        break;  // nearly cancels
      default:
        break;
    }
  }
  return values;
}

HadamardTask task_of(const CodecHarness& harness, unsigned bits) {
  return {.bits = bits,
          .step = harness.words.step,
          .parameter = harness.segments[0].parameter,
          .first_index = harness.segments[0].first_index};
}

std::uint32_t step_of(const GuardedBytes& frame) {
  std::uint32_t step;
  std::memcpy(&step, read_frame_header(frame.span()).parameters, sizeof step);
  return step;
}

void expect_reference_bytes(unsigned bits, const char* feedback, std::size_t count) {
  CodecHarness harness(spec_of(bits, feedback), {count});
  harness.segments[0].first_index = 0xfffffe00u;  // counters exceed 32 bits
  harness.set_gradient(corner_values(count));
  harness.words = {.step = 9, .gradient_factor = -0.3f, .residual_factor = -0.7f};
  StateWords next;
  EncodeCall call = harness.encode_call();
  call.words_out = &next;
  const GuardedBytes frame = harness.encode(call);
  const HadamardTask task = task_of(harness, bits);
  const HadamardCoded expected = hadamard_coded(task, harness.sent(), harness.residual_in());
  EXPECT_TRUE(same_bytes(payload_of(frame), hadamard_payload(task, expected)));
  EXPECT_TRUE(!harness.has_states() || same_values(harness.residual_out(), expected.residual));
  EXPECT_EQ(next.overflows, expected.overflows);
  EXPECT_EQ(next.step, 10u);
  EXPECT_EQ(step_of(frame), 9u);
  EXPECT_EQ(read_frame_header(frame.span()).parameters[4], bits);
  EXPECT_TRUE(harness.intact());
}

TEST(Hadamard, MatchesReferenceBytes) {
  for_each_isa([] {
    for (unsigned bits = 1; bits <= 4; ++bits)
      for (const char* feedback : {"", "+ef"})
        for (const std::size_t count : {0, 1, 31, 255, 256, 257, 511, 513, 7919, 70'001}) {
          SCOPED_TRACE(spec_of(bits, feedback) + " " + std::to_string(count));
          expect_reference_bytes(bits, feedback, count);
        }
  });
}

/// Frames of three ranks, and the reference's results.
struct HadamardRanks {
  std::vector<GuardedBytes> frames;
  std::vector<HadamardCoded> coded;

  HadamardRanks(CodecHarness& harness, unsigned bits) {
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
      harness.draw(rank);
      frames.push_back(harness.encode());
      coded.push_back(hadamard_coded(task_of(harness, bits), harness.sent(), {}));
    }
  }
};

TEST(Hadamard, DecodeMatchesReference) {
  const std::size_t count = 3000;
  for_each_isa([&] {
    for (unsigned bits = 1; bits <= 4; ++bits)
      for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
        for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd}) {
          CodecHarness harness(spec_of(bits), {count}, {.dtype = dtype});
          const HadamardRanks ranks(harness, bits);
          harness.set_output(gaussian(count, 44));
          const std::vector<float> old = harness.output();
          harness.decode(ranks.frames, mode, 0.3f);
          auto expected = hadamard_sum(task_of(harness, bits), ranks.coded, count, 0.3f);
          for (std::size_t i = 0; i < count; ++i)
            expected[i] =
                decoded_as(mode == DecodeMode::kAdd ? old[i] + expected[i] : expected[i], dtype);
          EXPECT_TRUE(same_values(harness.output(), expected)) << bits << dtype_name(dtype);
        }
  });
}

TEST(Hadamard, SingleFrameDecodeMatchesReferenceForAnyFactor) {
  const std::size_t count = 3000;
  for_each_isa([&] {
    for (unsigned bits = 1; bits <= 4; ++bits)
      for (const float factor : {1.0f, 0x1p-3f, 0.3f, -1.0f, 1 + 0x1p-4f, 1 + 0x1p-8f, 0x1p110f}) {
        CodecHarness harness(spec_of(bits), {count});
        HadamardRanks ranks(harness, bits);
        ranks.coded.resize(1);
        harness.decode({ranks.frames.front()}, DecodeMode::kAssign, factor);
        EXPECT_TRUE(same_values(harness.output(),
                                hadamard_sum(task_of(harness, bits), ranks.coded, count, factor)))
            << bits << " " << factor;
      }
  });
}

/// `cancels`: the residual and the sum cancel.
void expect_reference_sum(unsigned bits, std::size_t count, bool cancels) {
  CodecHarness harness(spec_of(bits, "+ef"), {count});
  const float residual_factor = cancels ? -1.0f : 0.7f;
  harness.words.step = 5;
  const HadamardRanks ranks(harness, bits);
  const HadamardTask task = task_of(harness, bits);
  harness.words = {.step = 6, .gradient_factor = 3, .residual_factor = residual_factor};
  std::vector<float> sum = hadamard_sum(task, ranks.coded, count, 1.0f);
  if (cancels) harness.set_residual(sum);
  const std::vector<float> residual = harness.residual_in();
  for (std::size_t i = 0; i < count; ++i) {
    const float product = residual_factor * residual[i];
    sum[i] = sum[i] + product;
  }
  const HadamardCoded expected = hadamard_coded(task, sum, residual);
  const GuardedBytes reduced = harness.reduce(ranks.frames);
  EXPECT_EQ(step_of(reduced), 5u) << "the frames' step goes on";
  EXPECT_TRUE(same_bytes(payload_of(reduced), hadamard_payload(task, expected)))
      << bits << " " << count;
  EXPECT_TRUE(same_values(harness.residual_out(), expected.residual)) << bits;
}

// Frames decode to errors after the last value. The absmax of a block excludes these errors.
TEST(Hadamard, ReduceMatchesReference) {
  for_each_isa([] {
    for (unsigned bits = 1; bits <= 4; ++bits) {
      expect_reference_sum(bits, 3000, false);
      expect_reference_sum(bits, 300, true);
    }
  });
}

TEST(Hadamard, DecodeTakesStepFromFrame) {
  CodecHarness harness("hadamard", {1000});
  harness.words.step = 0x01020304;
  const GuardedBytes frame = harness.encode();
  harness.decode({frame});
  const std::vector<float> expected = harness.output();
  harness.words.step = 0;
  harness.random.step = 9;
  harness.decode({frame});
  EXPECT_EQ(harness.output(), expected);
}

TEST(Hadamard, RejectsFramesOfDifferentSteps) {
  CodecHarness harness("hadamard+ef", {1000});
  harness.words.step = 3;
  const GuardedBytes first = harness.encode();
  harness.words.step = 4;
  const GuardedBytes second = harness.encode();
  const std::string words = "frame 2 of 3: frame step is 4, expected 3";
  const auto says = [&](const std::string& error) {
    return error.find(words) != std::string::npos;
  };
  const std::vector<float> before = harness.output();
  const std::string decoding = error_of<WireError>([&] { harness.decode({first, first, second}); });
  EXPECT_TRUE(says(decoding)) << decoding;
  EXPECT_TRUE(is_untouched_or_nan(harness.output(), before));
  const std::string reducing = error_of<WireError>([&] { harness.reduce({first, first, second}); });
  EXPECT_TRUE(says(reducing)) << reducing;
  harness.decode({second, second});
}

TEST(Hadamard, RejectsInvalidOrMismatchedBits) {
  for (const char* bits : {"0", "5", "2.0", "two", "-1", "02"}) {
    const std::string error =
        error_of<InvalidArgumentError>([&] { make_codec(std::string("hadamard:bits=") + bits); });
    EXPECT_NE(error.find("bits=1|2|3|4 (2)"), std::string::npos) << error;
    EXPECT_NE(error.find(std::string("\"") + bits + "\""), std::string::npos) << error;
  }
  EXPECT_EQ(make_codec("hadamard:bits=2+ef")->spec().text(), "hadamard+ef");
  CodecHarness two("hadamard", {600}), one("hadamard:bits=1", {600});
  const std::string error = error_of<WireError>([&] { one.decode({two.encode()}); });
  EXPECT_NE(error.find("frame parameters is bits=2, expected bits=1"), std::string::npos) << error;
}

/// |p - d|² / |p|² over the values of a segment.
double energy_lost(unsigned bits, const std::vector<float>& p) {
  CodecHarness harness(spec_of(bits), {p.size()});
  harness.set_gradient(p);
  harness.decode({harness.encode()});
  const std::vector<float> decoded = harness.output();
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    lost += std::pow(static_cast<double>(p[i]) - decoded[i], 2);
    all += std::pow(static_cast<double>(p[i]), 2);
  }
  return lost / all;
}

constexpr std::size_t kMany = 200'000;

std::vector<float> laplace() {
  std::vector<float> values(kMany);
  for (std::size_t i = 0; i < kMany; ++i) {
    const std::uint64_t random = mixed(i);
    const double uniform = (static_cast<double>(random >> 11) + 0.5) * 0x1p-53;
    values[i] = static_cast<float>(random % 2 == 0 ? std::log(uniform) : -std::log(uniform));
  }
  return values;
}

/// Student's t distribution with 3 degrees of freedom.
std::vector<float> student() {
  std::vector<float> values = gaussian(kMany, 1);
  const std::vector<float> a = gaussian(kMany, 2), b = gaussian(kMany, 3), c = gaussian(kMany, 4);
  for (std::size_t i = 0; i < kMany; ++i)
    values[i] /= std::sqrt((a[i] * a[i] + b[i] * b[i] + c[i] * c[i]) / 3);
  return values;
}

TEST(Hadamard, SquaredErrorIsIndependentOfDistribution) {
  const double expected[] = {0, 0.362, 0.118, 0.037, 0.0113};
  for (const std::vector<float>& values : {gaussian(kMany, 5), laplace(), student()})
    for (unsigned bits = 1; bits <= 4; ++bits)
      EXPECT_NEAR(energy_lost(bits, values), expected[bits], 0.05 * expected[bits]) << bits;
}

TEST(Hadamard, RelativeSquaredErrorOfOneBitIsAtMostOne) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::vector<float> values = gaussian(256, seed);
    for (std::size_t i = 0; i < 256; ++i)
      if (mixed(seed * 256 + i) % (1 + seed % 40) != 0) values[i] *= 1e-6f;
    ASSERT_LE(energy_lost(1, values), 1.0) << seed;
  }
}

TEST(Hadamard, SquaredErrorOfSpikes) {
  const double expected[] = {0, 0, 0.24, 0.015, 0.026};
  for (unsigned bits = 1; bits <= 4; ++bits) {
    std::vector<float> spike(256);
    spike[100] = -2;
    EXPECT_NEAR(energy_lost(bits, spike), expected[bits], 0.01) << bits;
  }
}

TEST(Hadamard, ReencodingDecodedOneBitValuesGivesEqualFrame) {
  const std::size_t count = 64 * kRotatedValues;  // whole blocks: values of padding would be lost
  std::vector<float> values = corner_values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t kind = i / kRotatedValues % 16;
    if (kind == 4 || kind == 7) values[i] = 0.1f;  // decoded values exceed the limits
  }
  for_each_isa([&] {
    CodecHarness harness("hadamard:bits=1", {count});
    harness.set_gradient(values);
    const GuardedBytes frame = harness.encode();
    harness.decode({frame});
    harness.set_gradient(harness.output());
    EXPECT_TRUE(same_bytes(harness.encode().span(), frame.span()));
  });
}

TEST(Hadamard, ResidualEqualsSentMinusDecoded) {
  CodecHarness harness("hadamard:bits=4+ef", {100'000});
  harness.decode({harness.encode()});
  const std::vector<float> sent = harness.sent(), decoded = harness.output();
  const std::vector<float> residual = harness.residual_out();
  for (std::size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(sent[i] - decoded[i], residual[i]) << i;
}

TEST(Hadamard, SignsOfTwoStepsAgreeForHalfOfTheValues) {
  CodecHarness harness("hadamard:bits=4", {100'000});
  GuardedBytes frame = harness.encode();
  harness.decode({frame});
  const std::vector<float> first = harness.output();
  for (const std::uint32_t step : {1u, 2u, 0x80000000u}) {
    change_header(frame.span(),
                  [&](FrameHeader& header) { std::memcpy(header.parameters, &step, sizeof step); });
    harness.decode({frame});
    const std::vector<float> second = harness.output();
    double agree = 0, all = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      ASSERT_EQ(std::fabs(first[i]), std::fabs(second[i]));
      if (first[i] == 0) continue;
      agree += first[i] == second[i];
      ++all;
    }
    EXPECT_NEAR(agree / all, 0.5, 0.01) << step;
  }
}

TEST(Hadamard, OverflowPoisonsOnlyItsBlock) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 0x1p120f, -3e38f}) {
    CodecHarness harness("hadamard:bits=1+ef", {3 * kRotatedValues});
    std::vector<float> gradient(3 * kRotatedValues, 1.0f);
    gradient[kRotatedValues + 3] = bad;
    harness.set_gradient(gradient);
    const std::vector<float> before = harness.residual_in();
    StateWords next;
    EncodeCall call = harness.encode_call();
    call.words_out = &next;
    harness.decode({harness.encode(call)});
    const std::vector<float> decoded = harness.output(), after = harness.residual_out();
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const bool poisoned = i / kRotatedValues == 1;
      ASSERT_EQ(std::isnan(decoded[i]), poisoned) << i;
      ASSERT_TRUE(!poisoned || after[i] == before[i]) << i;
    }
    EXPECT_EQ(next.overflows, std::isfinite(bad) ? 256u : 255u) << bad;
  }
}

TEST(Hadamard, ResidualKeepsTinyBlocks) {
  CodecHarness harness("hadamard+ef", {300}, {.scale = 0x1p-110f});
  harness.decode({harness.encode()});
  EXPECT_EQ(harness.output(), std::vector<float>(300, 0.0f));
  EXPECT_TRUE(same_values(harness.residual_out(), harness.sent()));
}

TEST(Hadamard, RoundsAreTwoShotThenGather) {
  const Plan plan = CodecHarness("hadamard:bits=3", {1000}).plan();
  ASSERT_EQ(plan.rounds.size(), 1u);
  EXPECT_EQ(plan.rounds[0].exchanges, (std::vector{Exchange::kTwoShot, Exchange::kGather}));
  EXPECT_EQ(plan.frame_bytes, (sizeof(FrameHeader) + HadamardLayout{1000, 3}.bytes()));
}

}  // namespace
}  // namespace tersor::test
