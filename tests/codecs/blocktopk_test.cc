// blocktopk compared with a reference written from the format alone, and properties of blocktopk
// only.

#include "tests/support/blocktopk_reference.h"
#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"

#include <tersor/codecs/blocktopk.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Blocktopk, CodecConformance,
                         ::testing::Values(CodecCase{"blocktopk", 1}, CodecCase{"blocktopk+ef", 1},
                                           CodecCase{"blocktopk:density=0.03,values=int4+ef", 1},
                                           CodecCase{"blocktopk:density=0.25,values=bf16", 1},
                                           CodecCase{"blocktopk:density=0.1,values=bf16+ef", 1},
                                           CodecCase{"blocktopk:density=0.0002+ef", 1}),
                         case_name);

struct BlocktopkVariant {
  BlocktopkTask task;
  const char* spec;
};
const BlocktopkVariant kBlocktopkVariants[] = {
    {{0.01, 1}, "blocktopk"},
    {{0.01, 1}, "blocktopk+ef"},
    {{0.25, 1}, "blocktopk:density=0.25+ef"},
    {{1e-9, 1}, "blocktopk:density=1e-9"},
    {{0.03, 4}, "blocktopk:density=0.03,values=int4+ef"},
    {{0.1, 4}, "blocktopk:density=0.1,values=int4"},
    {{0.02, 16}, "blocktopk:density=0.02,values=bf16+ef"},
    {{0.25, 16}, "blocktopk:density=0.25,values=bf16"},
    {{0.0625, 1}, "blocktopk:density=0.0625"},
};

/// Uses fewer counts on a device, because the PTX interpreter is slow.
std::vector<std::size_t> some(const std::vector<std::size_t>& counts, std::size_t on_a_device) {
  if (test_device() == nullptr) return counts;
  return {counts.begin(), counts.begin() + static_cast<std::ptrdiff_t>(on_a_device)};
}

/// Compares frame, residual, overflows and decoded values with the reference.
void expect_blocktopk(const BlocktopkVariant& variant, const std::vector<float>& gradient) {
  CodecHarness harness(variant.spec, {gradient.size()});
  harness.set_gradient(gradient);
  harness.words = {.step = 9, .gradient_factor = -0.3f, .residual_factor = -0.7f};
  StateWords next;
  EncodeCall call = harness.encode_call();
  call.words_out = &next;
  const GuardedBytes frame = harness.encode(call);
  const BlocktopkCoded expected =
      blocktopk_coded(variant.task, harness.sent(), harness.residual_in());
  EXPECT_TRUE(same_bytes(payload_of(frame), expected.payload));
  EXPECT_TRUE(!harness.has_states() || same_values(harness.residual_out(), expected.residual));
  EXPECT_EQ(next.overflows, expected.overflows);
  EXPECT_EQ(next.step, 10u);
  harness.decode({frame});
  EXPECT_TRUE(same_values(harness.output(), expected.decoded));
  EXPECT_TRUE(harness.intact());
}

/// Blocks of values covering all corner cases.
std::vector<float> corners_of_blocks(std::size_t count) {
  std::vector<float> values = gaussian(count, count + 1);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = i % kSelectedValues;
    const auto ones = static_cast<float>(i % 2 == 0 ? 1 : -1);
    switch (i / kSelectedValues % 13) {
      case 1:
        values[i] = index == 77 ? 3.0f : 0.0f;
        break;  // fewer than k
      case 2:
        values[i] = ones * 0.7f;
        break;  // ties only
      case 3:
        values[i] = static_cast<float>(static_cast<int>(mixed(i) % 9) - 4);
        break;  // many ties
      case 4:
        values[i] = std::ldexp(values[i], -static_cast<int>(mixed(i) % 90));
        break;  // falling fast
      case 5:
        values[i] = std::ldexp(values[i], -102);
        break;  // around the smallest scale
      case 6:
        values[i] = std::ldexp(values[i], -148);
        break;  // denormal
      case 7:
        values[i] = ones * 0x1.fffffep117f;
        break;  // below the limit
      case 8:
        values[i] = index == 5 ? 0x1p118f : values[i];
        break;  // at the limit
      case 9:
        values[i] = index == 4095 ? NAN : values[i];
        break;
      case 10:
        values[i] = index == 9 ? -INFINITY : values[i];
        break;
      case 11:
        values[i] = ones * 0.0f;
        break;  // zeros of both signs
      case 12:
        values[i] = (index < 500 ? 1.0f : 0.0f) + values[i] * 1e-3f;
        break;  // large values close together
      default:
        break;
    }
  }
  return values;
}

TEST(Blocktopk, MatchesReferenceBytes) {
  for_each_isa([] {
    for (const BlocktopkVariant& variant : kBlocktopkVariants)
      for (const std::size_t count :
           some({12'289, 0, 1, 2, 41, 100, 4095, 4096, 4097, 70'001}, 4)) {
        SCOPED_TRACE(std::string(variant.spec) + " " + std::to_string(count));
        expect_blocktopk(variant, gaussian(count, count));
      }
  });
}

TEST(Blocktopk, CornerCasesMatchReferenceBytes) {
  for_each_isa([] {
    for (const BlocktopkVariant& variant : kBlocktopkVariants) {
      SCOPED_TRACE(variant.spec);
      expect_blocktopk(variant, corners_of_blocks(13 * kSelectedValues + 1000));
    }
  });
}

TEST(Blocktopk, ShortBlocksMatchReferenceBytes) {
  for_each_isa([] {
    std::vector<std::size_t> counts;
    for (std::size_t count = 1; count < kSelectedValues; count += 61) counts.push_back(count);
    for (const std::size_t count : some(counts, 3))
      expect_blocktopk(kBlocktopkVariants[4], gaussian(count, count));
  });
}

TEST(Blocktopk, ReversedBlocksMatchReferenceBytes) {
  // The start of the threshold search depends on the previous block.
  const std::size_t blocks = 6;
  std::vector<float> values = gaussian(blocks * kSelectedValues, 3);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::ldexp(values[i], 40 * static_cast<int>(i / kSelectedValues % 3) - 40);
  for_each_isa([&] {
    expect_blocktopk(kBlocktopkVariants[0], values);
    std::vector<float> turned = values;
    std::ranges::reverse(turned);
    expect_blocktopk(kBlocktopkVariants[0], turned);
  });
}

/// Frames of three ranks, and the reference's results.
struct BlocktopkRanks {
  std::vector<GuardedBytes> frames;
  std::vector<std::vector<float>> decoded;

  BlocktopkRanks(CodecHarness& harness, const BlocktopkTask& task) {
    for (std::uint64_t rank = 0; rank < 3; ++rank) {
      harness.draw(rank);
      frames.push_back(harness.encode());
      decoded.push_back(blocktopk_coded(task, harness.sent(), {}).decoded);
    }
  }
};

TEST(Blocktopk, DecodeMatchesReference) {
  const std::size_t count = 9000;
  for_each_isa([&] {
    for (const BlocktopkVariant& variant : kBlocktopkVariants)
      for (const Dtype dtype : kGradientDtypes)
        for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd}) {
          CodecHarness harness(variant.spec, {count}, {.dtype = dtype});
          const BlocktopkRanks ranks(harness, variant.task);
          harness.set_output(gaussian(count, 44));
          std::vector<float> expected =
              mode == DecodeMode::kAdd ? harness.output() : std::vector<float>(count);
          for (const std::vector<float>& decoded : ranks.decoded)
            for (std::size_t i = 0; i < count; ++i) {
              const float product = decoded[i] * 0.3f;
              expected[i] = expected[i] + product;
            }
          for (float& value : expected) value = decoded_as(value, dtype);
          harness.decode(ranks.frames, mode, 0.3f);
          EXPECT_TRUE(same_values(harness.output(), expected)) << variant.spec;
        }
  });
}

TEST(Blocktopk, ReduceMatchesReference) {
  const std::size_t count = 9000;
  for_each_isa([&] {
    for (const BlocktopkVariant& variant : kBlocktopkVariants) {
      CodecHarness harness(variant.spec, {count});
      const BlocktopkRanks ranks(harness, variant.task);
      harness.words = {.step = 6, .gradient_factor = 3, .residual_factor = 0.7f};
      std::vector<float> sum(count), residual(count);
      if (harness.has_states()) residual = harness.residual_in();
      for (const std::vector<float>& decoded : ranks.decoded)
        for (std::size_t i = 0; i < count; ++i) sum[i] = sum[i] + decoded[i];
      for (std::size_t i = 0; i < count; ++i) {
        const float product = 0.7f * residual[i];
        sum[i] = sum[i] + product;
      }
      const BlocktopkCoded expected = blocktopk_coded(variant.task, sum, residual);
      const GuardedBytes reduced = harness.reduce(ranks.frames);
      EXPECT_TRUE(same_bytes(payload_of(reduced), expected.payload)) << variant.spec;
      EXPECT_TRUE(!harness.has_states() || same_values(harness.residual_out(), expected.residual))
          << variant.spec;
    }
  });
}

/// |p - d|² / |p|² over the values of a segment.
double energy_lost(const char* spec, const std::vector<float>& gradient) {
  CodecHarness harness(spec, {gradient.size()});
  harness.set_gradient(gradient);
  harness.set_residual(std::vector<float>(gradient.size()));
  harness.decode({harness.encode()});
  const std::vector<float> p = harness.sent(), decoded = harness.output();
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    lost += std::pow(static_cast<double>(p[i]) - decoded[i], 2);
    all += std::pow(static_cast<double>(p[i]), 2);
  }
  return lost / all;
}

TEST(Blocktopk, AlwaysContracts) {
  for (const BlocktopkVariant& variant : kBlocktopkVariants) {
    const auto k = static_cast<double>(variant.task.selected());
    const double least = std::min(k / kSelectedValues, 1 / k);
    for (std::uint64_t seed = 0; seed < (test_device() == nullptr ? 60u : 3u); ++seed) {
      std::vector<float> values = gaussian(kSelectedValues, seed);
      for (std::size_t i = 0; i < values.size(); ++i)
        if (mixed(seed * kSelectedValues + i) % (1 + seed % 40) != 0)
          values[i] *= std::ldexp(1.0f, -static_cast<int>(seed % 7) * 4);
      ASSERT_LE(energy_lost(variant.spec, values), 1 - least + 1e-6) << variant.spec << seed;
    }
  }
}

TEST(Blocktopk, SquaredErrorOfGaussianMatchesTheory) {
  // The error is 1 − density · mean², with the mean of the largest magnitudes. The mean of normally
  // distributed values is 2.892 (1 %) and 2.063 (10 %).
  const std::vector<float> values = gaussian(50 * kSelectedValues, 5);
  EXPECT_NEAR(energy_lost("blocktopk:density=0.01", values), 1 - 0.01 * 2.892 * 2.892, 0.005);
  EXPECT_NEAR(energy_lost("blocktopk:density=0.1", values), 1 - 0.1 * 2.063 * 2.063, 0.005);
}

TEST(Blocktopk, OverflowPoisonsOnlyItsBlock) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 0x1p118f, -3e38f}) {
    CodecHarness harness("blocktopk+ef", {3 * kSelectedValues});
    std::vector<float> gradient(3 * kSelectedValues, 1.0f);
    gradient[kSelectedValues + 300] = bad;
    harness.set_gradient(gradient);
    const std::vector<float> before = harness.residual_in();
    StateWords next;
    EncodeCall call = harness.encode_call();
    call.words_out = &next;
    harness.decode({harness.encode(call)});
    const std::vector<float> decoded = harness.output(), after = harness.residual_out();
    for (std::size_t i = 0; i < decoded.size(); ++i) {
      const std::size_t index = i - kSelectedValues;
      ASSERT_EQ(std::isnan(decoded[i]), i >= kSelectedValues && index < 41) << i;
      ASSERT_TRUE(i / kSelectedValues != 1 || after[i] == before[i]) << i;
    }
    EXPECT_EQ(next.overflows, std::isfinite(bad) ? 4096u : 4095u) << bad;
  }
}

TEST(Blocktopk, FlippedBitsOfIndicesAreRefusedOrStayInside) {
  const std::size_t count = kSelectedValues + 1000;
  CodecHarness harness("blocktopk:density=0.005", {count});
  const BlocktopkTask task{0.005, 1};
  const GuardedBytes good = harness.encode();
  const std::vector<std::size_t> sections = blocktopk_sections(task, count);
  const std::size_t step = test_device() == nullptr ? 1 : 29;
  std::size_t refused = 0, read = 0;
  for (std::size_t bit = 8 * sections[1]; bit < 8 * sections[3]; bit += step) {
    GuardedBytes bad = good;
    bad.span()[sizeof(FrameHeader) + bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    change_header(bad.span(), [](FrameHeader&) {});
    const std::vector<float> marks = gaussian(count, 1);
    harness.set_output(marks);
    const std::string error = error_of<WireError>([&] { harness.decode({good, bad}); });
    EXPECT_TRUE(harness.intact()) << bit;
    if (error.empty()) {
      ++read;
      EXPECT_LE(std::ranges::count_if(harness.output(), [](float v) { return v != 0; }), 4 * 21);
      continue;
    }
    ++refused;
    EXPECT_TRUE(is_untouched_or_nan(harness.output(), marks)) << bit;
    EXPECT_NE(error.find("frame 1 of 2, segment 0: "), std::string::npos) << error;
    EXPECT_FALSE(error_of<WireError>([&] { harness.reduce({good, bad}); }).empty()) << bit;
  }
  EXPECT_GT(refused, 0u);
  EXPECT_GT(read, 0u);
}

TEST(Blocktopk, ReportsDamagedIndices) {
  CodecHarness harness("blocktopk:density=0.005", {2 * kSelectedValues + 100});
  const std::vector<std::size_t> sections =
      blocktopk_sections({0.005, 1}, 2 * kSelectedValues + 100);
  const auto error_with = [&](std::size_t word, std::uint32_t value) {
    GuardedBytes bad = harness.encode();
    std::memcpy(bad.span().data() + sizeof(FrameHeader) + sections[1] + 4 * word, &value, 4);
    change_header(bad.span(), [](FrameHeader&) {});
    return error_of<WireError>([&] { harness.decode({bad}); });
  };
  // 21 of 4,096 values: l = 7, so 53 bits in two words per block encode the upper 5 bits of the
  // indices.
  const bool on_host = test_device() == nullptr;
  const auto says = [&](const std::string& error, const char* words) {
    return error.find(on_host ? words : "damaged") != std::string::npos;
  };
  EXPECT_TRUE(says(error_with(1, 0xffffffffu), "more values than its density allows"));
  EXPECT_TRUE(says(error_with(3, 0x80000000u), "beyond the end of its block"));
  EXPECT_TRUE(says(error_with(4, 0x00100000u), "beyond the end of its block"));
}

TEST(Blocktopk, RejectsInvalidDensitiesAndValueTypes) {
  for (const char* density : {"0", "-0.1", "0.2501", "1", "nan", "x", "1e999"}) {
    const std::string error = error_of<InvalidArgumentError>(
        [&] { make_codec(std::string("blocktopk:density=") + density); });
    EXPECT_NE(error.find("above 0, at most 0.25"), std::string::npos) << error;
  }
  const std::string error =
      error_of<InvalidArgumentError>([] { make_codec("blocktopk:values=int8"); });
  EXPECT_NE(error.find("values=sign|int4|bf16 (sign)"), std::string::npos) << error;
  EXPECT_EQ(make_codec("blocktopk:values=sign+ef")->spec().text(), "blocktopk:density=0.01+ef");
}

TEST(Blocktopk, TraitsAndPlan) {
  const auto codec = make_codec("blocktopk");
  EXPECT_TRUE(codec->traits().divisible);
  EXPECT_EQ(codec->traits().unit, kSelectedValues);
  const Plan plan = CodecHarness("blocktopk", {100'000}).plan();
  ASSERT_EQ(plan.rounds.size(), 1u);
  EXPECT_EQ(plan.rounds[0].exchanges, (std::vector{Exchange::kTwoShot, Exchange::kGather}));
  EXPECT_EQ(plan.frame_bytes, sizeof(FrameHeader) + 112 + 400 + 800 + 208);
}

}  // namespace
}  // namespace tersor::test
