// topk compared with a full sort, and properties of topk only.

#include "tests/support/codec_conformance.h"
#include "tests/support/reference.h"

#include <tersor/codecs/topk.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace tersor::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Topk, CodecConformance,
                         ::testing::Values(CodecCase{"topk", 1}, CodecCase{"topk+ef", 1},
                                           CodecCase{"topk:density=0.1,values=bf16+ef", 1},
                                           CodecCase{"topk:density=0.1,values=int8", 1},
                                           CodecCase{"topk:density=0.003,values=int8+ef", 1},
                                           CodecCase{"topk:density=1+ef", 0}),
                         case_name);

/// The selected values of one segment, by a full sort.
struct Chosen {
  std::vector<std::size_t> indices;  // ascending
  std::vector<float> values;         // as sent
  std::vector<float> scales;         // int8
  std::vector<int> codes;
};

/// Indices of the k largest magnitudes. Ties go to the lowest index; zeros are never selected. A
/// poisoned segment selects the first k indices.
std::vector<std::size_t> indices_of(const std::vector<float>& p, std::size_t selected) {
  std::vector<std::size_t> indices(p.size());
  std::iota(indices.begin(), indices.end(), 0);
  const bool poisoned = std::ranges::any_of(p, [](float v) { return !std::isfinite(v); });
  if (!poisoned)
    std::ranges::stable_sort(
        indices, [&](std::size_t a, std::size_t b) { return std::fabs(p[a]) > std::fabs(p[b]); });
  indices.resize(selected);
  if (!poisoned) std::erase_if(indices, [&](std::size_t index) { return p[index] == 0; });
  std::ranges::sort(indices);
  return indices;
}

Chosen choose(const std::vector<float>& p, std::size_t selected, TopkValues type) {
  Chosen chosen{indices_of(p, selected), {}, {}, {}};
  const bool poisoned = std::ranges::any_of(p, [](float v) { return !std::isfinite(v); });
  for (const std::size_t index : chosen.indices)
    chosen.values.push_back(poisoned ? std::nanf("") : p[index]);
  if (type == TopkValues::kBf16)
    for (float& value : chosen.values) value = rounded(value, Dtype::kBf16);
  if (type != TopkValues::kInt8) return chosen;
  const Quantized quantized = quantize({.levels = 127, .block = 256}, chosen.values, {});
  chosen.scales = quantized.scales;
  chosen.codes = quantized.codes;
  for (std::size_t i = 0; i < chosen.values.size(); ++i)
    chosen.values[i] = static_cast<float>(chosen.codes[i]) * chosen.scales[i / 256];
  return chosen;
}

template <typename T>
void put(std::vector<std::byte>& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

std::vector<std::byte> topk_payload(const Chosen& chosen, const TopkLayout& layout) {
  std::vector<std::byte> bytes(layout.bytes());
  for (std::size_t tile = 0; tile <= layout.tiles(); ++tile) {
    const auto before = std::ranges::lower_bound(chosen.indices, tile * 65536);
    put(bytes, 4 * tile, static_cast<std::uint32_t>(before - chosen.indices.begin()));
  }
  put(bytes, 4 * layout.tiles(), static_cast<std::uint32_t>(chosen.indices.size()));
  for (std::size_t i = 0; i < chosen.indices.size(); ++i) {
    put(bytes, layout.index_offset() + 2 * i,
        static_cast<std::uint16_t>(chosen.indices[i] % 65536));
    const std::size_t at = layout.values_offset() + i * layout.value_bytes();
    if (layout.values == TopkValues::kF32) put(bytes, at, chosen.values[i]);
    if (layout.values == TopkValues::kBf16) put(bytes, at, narrow(chosen.values[i], Dtype::kBf16));
    if (layout.values == TopkValues::kInt8)
      put(bytes, at, static_cast<std::int8_t>(chosen.codes[i]));
  }
  for (std::size_t i = 0; i < chosen.scales.size(); ++i)
    put(bytes, layout.scales_offset() + 4 * i, chosen.scales[i]);
  return bytes;
}

struct TopkVariant {
  const char* spec;
  double density;
  TopkValues values;
};
const TopkVariant kTopkVariants[] = {
    {"topk", 0.01, TopkValues::kF32},
    {"topk+ef", 0.01, TopkValues::kF32},
    {"topk:density=0.3,values=bf16+ef", 0.3, TopkValues::kBf16},
    {"topk:density=0.02,values=int8+ef", 0.02, TopkValues::kInt8},
    {"topk:density=1,values=int8", 1, TopkValues::kInt8},
};

/// Compares frame, residual and decoded values with the reference.
void expect_topk(const TopkVariant& variant, const std::vector<float>& gradient) {
  CodecHarness harness(variant.spec, {gradient.size()});
  harness.set_gradient(gradient);
  harness.decode({harness.encode()});
  const GuardedBytes frame = harness.encode();
  const TopkLayout layout{gradient.size(), topk_selected(gradient.size(), variant.density),
                          variant.values};
  const std::vector<float> sent = harness.sent();
  const Chosen chosen = choose(sent, layout.selected, variant.values);
  EXPECT_TRUE(same_bytes(frame.span().subspan(sizeof(FrameHeader)), topk_payload(chosen, layout)));
  std::vector<float> decoded(sent.size()), residual = sent;
  for (std::size_t i = 0; i < chosen.indices.size(); ++i) {
    decoded[chosen.indices[i]] = chosen.values[i];
    residual[chosen.indices[i]] = sent[chosen.indices[i]] - chosen.values[i];
  }
  EXPECT_TRUE(same_values(harness.output(), decoded));
  EXPECT_TRUE(!harness.has_states() || same_values(harness.residual_out(), residual));
}

std::vector<float> small_integers(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(static_cast<int>(mixed(i) % 9) - 4);
  return values;
}

TEST(Topk, MatchesReferenceBytes) {
  for_each_isa([] {
    for (const TopkVariant& variant : kTopkVariants)
      for (const std::size_t count : {0, 1, 2, 100, 257, 7919, 65'535, 65'536, 65'537, 200'003}) {
        SCOPED_TRACE(std::string(variant.spec) + " " + std::to_string(count));
        expect_topk(variant, gaussian(count, count));
      }
  });
}

TEST(Topk, TiesSelectLowestIndexAndZerosAreSkipped) {
  for_each_isa([] {
    for (const TopkVariant& variant : kTopkVariants) {
      SCOPED_TRACE(variant.spec);
      if (make_codec(variant.spec)->has_feedback()) continue;  // residuals would break the ties
      for (const std::size_t count : {10, 1000, 70'000}) {
        expect_topk(variant, small_integers(count));
        expect_topk(variant, std::vector<float>(count, -2.0f));
        expect_topk(variant, std::vector<float>(count, 0.0f));
        std::vector<float> sparse(count, 0.0f);
        sparse[count / 2] = 1e-40f;
        expect_topk(variant, sparse);
      }
    }
  });
}

TEST(Topk, NonFiniteValuePoisonsTheSegment) {
  for_each_isa([] {
    for (const float bad : {std::nanf(""), INFINITY}) {
      CodecHarness harness("topk:density=0.02+ef", {1000, 500});
      std::vector<float> gradient = harness.gradient();
      gradient[900] = bad;
      harness.set_gradient(gradient);
      const std::vector<float> before = harness.residual_in();
      harness.decode({harness.encode()});
      const std::vector<float> decoded = harness.output();
      for (std::size_t i = 0; i < 1000; ++i) ASSERT_EQ(std::isnan(decoded[i]), i < 20) << i;
      EXPECT_EQ(harness.residual_out(), before);
      EXPECT_TRUE(std::ranges::none_of(harness.output(1), [](float v) { return std::isnan(v); }));
    }
  });
}

TEST(Topk, SkewedDistributionsMatchReference) {
  // Distributions: nearly all equal, few large values, or quickly decreasing.
  for_each_isa([] {
    const std::size_t count = 150'000;
    std::vector<float> spread = gaussian(count, 3);
    for (std::size_t i = 0; i < count; ++i)
      spread[i] = std::ldexp(spread[i], -static_cast<int>(mixed(i) % 90));
    expect_topk(kTopkVariants[0], spread);
    std::vector<float> rare(count, 1e-3f);
    for (std::size_t i = 0; i < count; i += 1013) rare[i] = static_cast<float>(i + 1);
    expect_topk(kTopkVariants[0], rare);
    std::ranges::sort(spread);
    expect_topk(kTopkVariants[0], spread);
  });
}

TEST(Topk, DecodedSumsMatchReference) {
  const std::size_t count = 70'000;
  for_each_isa([] {
    for (const Dtype dtype : kGradientDtypes) {
      CodecHarness harness("topk:density=0.2", {count}, {.dtype = dtype});
      std::vector<GuardedBytes> frames;
      std::vector<float> expected(count);
      for (std::uint64_t rank = 0; rank < 3; ++rank) {
        harness.draw(rank);
        frames.push_back(harness.encode());
        const Chosen chosen = choose(harness.sent(), topk_selected(count, 0.2), TopkValues::kF32);
        for (std::size_t i = 0; i < chosen.indices.size(); ++i)
          expected[chosen.indices[i]] += chosen.values[i] * 0.3f;
      }
      for (float& value : expected) value = decoded_as(value, dtype);
      harness.decode(frames, DecodeMode::kAssign, 0.3f);
      EXPECT_TRUE(same_values(harness.output(), expected)) << dtype_name(dtype);
    }
  });
}

TEST(Topk, RejectsInvalidIndices) {
  CodecHarness harness("topk:density=0.1", {66'000});
  const GuardedBytes good = harness.encode();
  const TopkLayout layout{66'000, 6600, TopkValues::kF32};
  const auto error_with = [&](std::size_t offset, auto value) {
    GuardedBytes bad = good;
    std::memcpy(bad.span().data() + sizeof(FrameHeader) + offset, &value, sizeof value);
    change_header(bad.span(), [](FrameHeader&) {});
    const std::vector<float> marks = gaussian(66'000, 1);
    harness.set_output(marks);
    const std::string error = error_of<WireError>([&] { harness.decode({good, bad}); });
    EXPECT_TRUE(is_untouched_or_nan(harness.output(), marks));
    EXPECT_NE(error.find("frame 1 of 2, segment 0"), std::string::npos) << error;
  };
  error_with(0, std::uint32_t{1});                                   // does not begin at 0
  error_with(4, std::uint32_t{6601});                                // beyond k
  error_with(8, std::uint32_t{6601});                                // more than k selected
  error_with(8, std::uint32_t{1});                                   // decreases
  error_with(layout.index_offset() + 2 * 6599, std::uint16_t{464});  // after the last value
  error_with(layout.index_offset() + 2 * 6599, std::uint16_t{65535});
  std::uint16_t first;
  std::memcpy(&first, good.span().data() + sizeof(FrameHeader) + layout.index_offset(), 2);
  error_with(layout.index_offset() + 2, first);  // the same index twice
}

TEST(Topk, SelectedCountAndSizeLimit) {
  EXPECT_EQ(topk_selected(0, 0.5), 0u);
  EXPECT_EQ(topk_selected(1, 1e-9), 1u);
  EXPECT_EQ(topk_selected(1000, 0.01), 10u);
  EXPECT_EQ(topk_selected(1001, 0.01), 11u);
  EXPECT_EQ(topk_selected(7, 1), 7u);
  const auto codec = make_codec("topk:density=1");
  const Segment huge{.count = std::size_t{1} << 32};
  EXPECT_THROW(codec->plan({.segments = {&huge, 1}}), InvalidArgumentError);
}

TEST(Topk, HeaderContainsDensityAndValueType) {
  const FrameHeader header =
      read_frame_header(CodecHarness("topk:density=0.25,values=int8", {64}).encode().span());
  double density;
  std::memcpy(&density, header.parameters, sizeof density);
  EXPECT_EQ(density, 0.25);
  EXPECT_EQ(header.flags >> kCodecFlagShift, 2);
}

TEST(Topk, RejectsMismatchedDensity) {
  CodecHarness some("topk:density=0.01", {100}), more("topk:density=0.0100001", {100});
  const std::string error = error_of<WireError>([&] { some.decode({more.encode()}); });
  EXPECT_NE(error.find("parameters"), std::string::npos) << error;
}

TEST(Topk, RoundIsAGather) {
  const Plan plan = CodecHarness("topk", {1000}).plan();
  EXPECT_EQ(plan.rounds.at(0).exchanges, (std::vector{Exchange::kGather}));
}

}  // namespace
}  // namespace tersor::test
