// The conformance suite: encoding and decoding.

#include "tests/support/codec_conformance.h"

#include "tests/support/grid.h"
#include "tests/support/reference.h"
#include "tests/support/specs.h"

#include <algorithm>
#include <cmath>

namespace tersor::test {

// References to the other files of the suite force the linker to include these files from the
// library.
void link_conformance_feedback();
void link_conformance_frames();
void link_conformance_calls();

CodecConformance::CodecConformance() {
  link_conformance_feedback();
  link_conformance_frames();
  link_conformance_calls();
}

void CodecConformance::SetUp() {
  if (test_device() != nullptr && !runs_on_devices(spec())) GTEST_SKIP() << "for hosts only";
}

std::string case_name(const ::testing::TestParamInfo<CodecCase>& info) {
  return test_name(info.param.spec);
}

bool CodecConformance::is_sparse() const {
  return make_codec(spec())->spec().text().find("density=") != std::string::npos;
}

bool CodecConformance::allows(Exchange exchange) const {
  const Plan plan = CodecHarness(spec(), {256}).plan();
  const auto& exchanges = plan.rounds.front().exchanges;
  return std::ranges::find(exchanges, exchange) != exchanges.end();
}

void for_each_isa(const std::function<void()>& body) {
  if (test_device() != nullptr) return body();  // a device has a single instruction set
  for (const Isa isa : available_isas()) {
    SCOPED_TRACE(std::string(isa_name(isa)));
    const ForcedIsa forced(isa);
    body();
  }
}

namespace {

double largest(const std::vector<float>& values) {
  double most = 0;
  for (const float value : values) most = std::max(most, std::fabs(static_cast<double>(value)));
  return most;
}

/// The error added by rounding to a dtype, relative to the largest value.
double rounding_error(Dtype dtype) {
  return dtype == Dtype::kF32 ? 0x1p-23 : dtype == Dtype::kBf16 ? 0x1p-8 : 0x1p-10;
}

void expect_close(const std::vector<float>& found, const std::vector<float>& expected,
                  double error) {
  ASSERT_EQ(found.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < found.size(); ++i)
    worst = std::max(worst, std::fabs(static_cast<double>(found[i]) - expected[i]));
  EXPECT_LE(worst, error);
}

/// Checks the distance relative to the norm of `expected`.
void expect_near(const std::vector<float>& found, const std::vector<float>& expected,
                 double error) {
  double distance = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    distance += std::pow(static_cast<double>(found[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  EXPECT_LE(std::sqrt(distance / norm), error);
}

/// Frames of several ranks with different gradients.
std::vector<GuardedBytes> frames_of_ranks(CodecHarness& harness, std::size_t ranks) {
  std::vector<GuardedBytes> frames;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    harness.draw(100 + rank);
    frames.push_back(harness.encode());
  }
  return frames;
}

TEST_P(CodecConformance, RoundTripErrorIsBounded) {
  for_each_isa([&] {
    for (const Dtype dtype : kGradientDtypes)
      for (const std::size_t count : kCounts) {
        if (!is_quick(count, dtype)) continue;
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(count));
        CodecHarness harness(spec(), {count}, {.dtype = dtype});
        harness.decode({harness.encode()});
        const std::vector<float> sent = harness.sent();
        const double error = GetParam().error + rounding_error(dtype);
        expect_close(harness.output(), sent, error * largest(sent));
        EXPECT_TRUE(harness.intact());
      }
  });
}

TEST_P(CodecConformance, SegmentsOfAFrameAreIndependent) {
  const std::vector<std::size_t> counts = {0, 3, 256, 0, 1000, 65537, 131072, 0};
  for_each_isa([&] {
    CodecHarness all(spec(), counts);
    const GuardedBytes frame = all.encode();
    all.decode({frame});
    ConstByteSpan rest = frame.span().subspan(sizeof(FrameHeader));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      SCOPED_TRACE(i);
      CodecHarness one(spec(), {counts[i]});
      one.segments[0].parameter = all.segments[i].parameter;
      one.set_gradient(all.gradient(i));
      one.set_residual(all.residual_in(i));
      const GuardedBytes single = one.encode();
      one.decode({single});
      const ConstByteSpan payload = single.span().subspan(sizeof(FrameHeader));
      EXPECT_TRUE(same_bytes(rest.first(payload.size()), payload));
      EXPECT_TRUE(same_values(all.output(i), one.output()));
      EXPECT_TRUE(same_values(all.residual_out(i), one.residual_out()));
      rest = rest.subspan(payload.size());
    }
    EXPECT_TRUE(rest.empty());
  });
}

TEST_P(CodecConformance, AlignmentDoesNotMatter) {
  for_each_isa([&] {
    for (const Dtype dtype : kGradientDtypes)
      for (const std::size_t count : {1, 257, 7919}) {
        CodecHarness aligned(spec(), {static_cast<std::size_t>(count)}, {.dtype = dtype});
        const GuardedBytes frame = aligned.encode();
        aligned.decode({frame});
        for (const std::size_t shift : {1, 2, 3, 7}) {
          CodecHarness shifted(spec(), {static_cast<std::size_t>(count)},
                               {.dtype = dtype, .shift = shift});
          EXPECT_TRUE(same_bytes(shifted.encode().span(), frame.span())) << count << " " << shift;
          shifted.decode({frame});
          EXPECT_TRUE(same_values(shifted.output(), aligned.output())) << count << " " << shift;
          EXPECT_TRUE(same_values(shifted.residual_out(), aligned.residual_out()));
          EXPECT_TRUE(shifted.intact());
        }
      }
  });
}

TEST_P(CodecConformance, ZerosStayZeros) {
  for_each_isa([&] {
    CodecHarness harness(spec(), {1000});
    harness.set_gradient(std::vector<float>(1000, 0.0f));
    harness.set_residual(std::vector<float>(1000, 0.0f));
    harness.decode({harness.encode()});
    EXPECT_EQ(harness.output(), std::vector<float>(1000, 0.0f));
    EXPECT_TRUE(!has_feedback() || harness.residual_out() == std::vector<float>(1000, 0.0f));
  });
}

TEST_P(CodecConformance, NonFiniteValuesRemainVisible) {
  for_each_isa([&] {
    for (const Dtype dtype : kGradientDtypes)
      for (const float bad : {std::nanf(""), INFINITY, -INFINITY})
        for (const std::size_t position : {0, 300, 999}) {
          CodecHarness harness(spec(), {1000}, {.dtype = dtype});
          std::vector<float> gradient = harness.gradient();
          gradient[position] = bad;
          harness.set_gradient(gradient);
          const std::vector<float> before = harness.residual_in();
          harness.decode({harness.encode()});
          const std::vector<float> decoded = harness.output();
          const bool shown =
              is_sparse() ? std::ranges::any_of(decoded, [](float v) { return std::isnan(v); })
                          : !std::isfinite(decoded[position]);
          EXPECT_TRUE(shown) << bad << " at " << position;
          if (!has_feedback()) continue;
          EXPECT_EQ(harness.residual_out()[position], before[position]);
          EXPECT_TRUE(std::ranges::all_of(harness.residual_out(),
                                          [](float value) { return std::isfinite(value); }));
        }
  });
}

TEST_P(CodecConformance, DecodeAddsAndScales) {
  for_each_isa([&] {
    for (const Dtype dtype : kGradientDtypes) {
      CodecHarness harness(spec(), {2000, 77}, {.dtype = dtype});
      const std::vector<GuardedBytes> frames = {harness.encode()};
      harness.decode(frames);
      std::vector<float> expected = harness.output();
      const std::vector<float> old = gaussian(expected.size(), 5);
      for (const float factor : {1.0f, 0.25f, -3.0f}) {
        harness.decode(frames, DecodeMode::kAssign, factor);
        std::vector<float> assigned = expected;
        for (float& value : assigned) value *= factor;
        const double error = 2 * rounding_error(dtype) * (4 * largest(expected) + largest(old));
        expect_close(harness.output(), assigned, error);
        harness.set_output(old);
        harness.decode(frames, DecodeMode::kAdd, factor);
        for (std::size_t i = 0; i < old.size(); ++i) assigned[i] += old[i];
        expect_close(harness.output(), assigned, error);
      }
      EXPECT_TRUE(harness.intact());
    }
  });
}

TEST_P(CodecConformance, AddsFramesInOrder) {
  for_each_isa([&] {
    for (const std::size_t ranks : {2, 3, 8, 70}) {
      const std::size_t count = grid_is_small() && ranks > 3 ? 20'001 : 70'001;
      CodecHarness harness(spec(), {700, count}, {.contributions = ranks});
      const std::vector<GuardedBytes> frames = frames_of_ranks(harness, ranks);
      harness.decode(frames, DecodeMode::kAssign, 0.5f);
      const std::vector<float> at_once = harness.outputs();
      for (std::size_t i = 0; i < ranks; ++i)
        harness.decode({frames[i]}, i == 0 ? DecodeMode::kAssign : DecodeMode::kAdd, 0.5f);
      if (GetParam().sums == 0)
        EXPECT_TRUE(same_values(at_once, harness.outputs())) << ranks;
      else
        expect_near(at_once, harness.outputs(), GetParam().sums);
    }
  });
}

/// Finite f16 gradients decode to finite values with every codec, and the mean of decoded frames is
/// finite, too.
TEST_P(CodecConformance, FiniteF16GradientsStayFinite) {
  for_each_isa([&] {
    CodecHarness harness(spec(), {3000, 77}, {.dtype = Dtype::kF16, .contributions = 3});
    std::vector<GuardedBytes> frames;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      for (std::size_t segment = 0; segment < 2; ++segment) {
        std::vector<float> values = gaussian(harness.segments[segment].count, rank);
        for (std::size_t i = 0; i < values.size(); ++i)
          values[i] = std::copysign(i % 3 == 0 ? 65504.0f : 60000.0f, values[i]);
        harness.set_gradient(values, segment);
        harness.set_residual(std::vector<float>(values.size(), 0.0f), segment);
      }
      frames.push_back(harness.encode());
    }
    const auto is_finite = [&] {
      return std::ranges::all_of(harness.outputs(), [](float one) { return std::isfinite(one); });
    };
    harness.decode({frames[0]});
    EXPECT_TRUE(is_finite()) << "one rank's";
    harness.decode(frames, DecodeMode::kAssign, 1.0f / 3);
    EXPECT_TRUE(is_finite()) << "a mean";
    if (!allows(Exchange::kTwoShot)) return;
    harness.decode({harness.reduce(frames, 1.0f / 3)});
    EXPECT_TRUE(is_finite()) << "a mean of an owner's";
  });
}

/// Returns the same frames with dtype f32 in the header. All codecs except none send the same
/// payload.
std::vector<GuardedBytes> as_f32(std::vector<GuardedBytes> frames) {
  for (GuardedBytes& frame : frames)
    change_header(frame.span(), [](FrameHeader& header) { header.dtype = 0; });
  return frames;
}

TEST_P(CodecConformance, SumsOf16BitGradientsAreRoundedOnce) {
  if (spec().starts_with("none") || spec().starts_with("entropy"))
    GTEST_SKIP() << "payloads depend on the dtype";
  for_each_isa([&] {
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
      CodecHarness harness(spec(), {70'001}, {.dtype = dtype});
      const std::vector<GuardedBytes> frames = frames_of_ranks(harness, 3);
      CodecHarness wide(spec(), {70'001});
      wide.decode(as_f32(frames), DecodeMode::kAssign, 0.3f);
      harness.decode(frames, DecodeMode::kAssign, 0.3f);
      std::vector<float> expected = wide.output();
      for (float& value : expected) value = rounded(value, dtype);
      EXPECT_TRUE(same_values(harness.output(), expected)) << dtype_name(dtype);
    }
  });
}

TEST_P(CodecConformance, ReduceIsDecodeAddEncode) {
  if (!allows(Exchange::kTwoShot)) GTEST_SKIP() << spec() << " does not reduce";
  for_each_isa([&] {
    for (const auto& [ranks, factor] : {std::pair{1ul, 1.0f}, {3ul, 1.0f / 3}, {70ul, 1.0f}}) {
      const std::size_t count = grid_is_small() && ranks == 70 ? 20'001 : 70'001;
      CodecHarness harness(spec(), {0, 700, count}, {.contributions = ranks});
      const std::vector<GuardedBytes> frames = frames_of_ranks(harness, ranks);
      harness.words.gradient_factor = 1.0f;
      harness.words.residual_factor = 0.75f;
      const GuardedBytes reduced = harness.reduce(frames, factor);
      const std::vector<float> residual = harness.residuals_out();
      harness.decode(frames, DecodeMode::kAssign, factor);
      for (std::size_t i = 0; i < harness.segments.size(); ++i)
        harness.set_gradient(harness.output(i), i);
      EXPECT_TRUE(same_bytes(harness.encode().span(), reduced.span())) << ranks;
      EXPECT_TRUE(same_values(harness.residuals_out(), residual)) << ranks;
    }
  });
}

TEST_P(CodecConformance, ReduceWithoutOwnersResidual) {
  if (!allows(Exchange::kTwoShot) || !has_feedback()) GTEST_SKIP() << spec() << " has no owner";
  CodecHarness harness(spec(), {700});
  const std::vector<GuardedBytes> frames = frames_of_ranks(harness, 3);
  ReduceCall call = harness.reduce_call(frames);
  call.states = {};
  GuardedBytes reduced(harness.plan().frame_bytes);
  harness.codec().reduce(call, reduced.span());
  harness.set_residual(std::vector<float>(700, 0.0f));
  EXPECT_TRUE(same_bytes(harness.reduce(frames).span(), without_rest(reduced).span()));
}

TEST_P(CodecConformance, ChunkingDoesNotChangeResults) {
  if (!divisible()) GTEST_SKIP() << spec() << " is never cut";
  for_each_isa([&] {
    const std::size_t count = 19 * unit() + 272;
    CodecHarness whole(spec(), {count});
    whole.segments[0].first_index = 5 * unit();
    whole.decode({whole.encode()});
    CodecHarness cut(spec(), {unit(), 2 * unit(), 9 * unit(), count - 12 * unit()});
    std::size_t first = 0;
    for (std::size_t i = 0; i < cut.segments.size(); ++i) {
      cut.segments[i].parameter = whole.segments[0].parameter;
      cut.segments[i].first_index = whole.segments[0].first_index + first;
      const std::vector<float> gradient = whole.gradient(), residual = whole.residual_in();
      const std::size_t last = first + cut.segments[i].count;
      cut.set_gradient({gradient.begin() + first, gradient.begin() + last}, i);
      cut.set_residual({residual.begin() + first, residual.begin() + last}, i);
      first = last;
    }
    cut.decode({cut.encode()});
    EXPECT_TRUE(same_values(cut.outputs(), whole.outputs()));
    EXPECT_TRUE(same_values(cut.residuals_out(), whole.residuals_out()));
  });
}

TEST_P(CodecConformance, WindowedDecodeMatchesWholeDecode) {
  if (divisible()) GTEST_SKIP() << spec() << " is cut instead";
  for_each_isa([&] {
    CodecHarness harness(spec(), {200'000});
    const std::vector<GuardedBytes> frames = frames_of_ranks(harness, 3);
    harness.decode(frames, DecodeMode::kAssign, 0.5f);
    const std::vector<float> whole = harness.output();
    for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 0},
                                       {0, 65'536},
                                       {70'001, 99'999},
                                       {199'999, 1},
                                       {200'000, 0}}) {
      GuardedValues window(count, Dtype::kF32, 1);
      const ValueSpan span = window.span();
      DecodeCall call = harness.decode_call(frames);
      call.outputs = {&span, 1};
      call.window_first = first;
      call.factor = 0.5f;
      harness.codec().decode(call);
      const std::vector<float> part(whole.begin() + first, whole.begin() + first + count);
      EXPECT_TRUE(same_values(window.floats(), part)) << first << " " << count;
      EXPECT_TRUE(window.intact());
    }
  });
}

TEST_P(CodecConformance, RawValuesEqualScaledGradient) {
  if (!allows(Exchange::kNativeSum)) GTEST_SKIP() << spec() << " has no native sum";
  for_each_isa([&] {
    for (const Dtype dtype : kGradientDtypes) {
      CodecHarness harness(spec(), {300, 0, 5}, {.dtype = dtype});
      const Round round = harness.plan().rounds.front();
      ASSERT_EQ(round.native_count, 305u);
      GuardedValues raw(round.native_count, round.native_dtype, 1);
      harness.codec().encode_native(harness.encode_call(), 0.3f, raw.span());
      std::vector<float> expected;
      for (const std::size_t segment : {0, 2})
        for (const float value : harness.gradient(segment))
          expected.push_back(rounded(value * 0.3f, round.native_dtype));
      EXPECT_TRUE(same_values(raw.floats(), expected));
      harness.codec().decode_native(harness.decode_call({}), raw.span());
      for (float& value : expected) value = rounded(value, dtype);
      EXPECT_TRUE(same_values(harness.outputs(), expected));
      EXPECT_TRUE(raw.intact() && harness.intact());
    }
  });
}

}  // namespace
}  // namespace tersor::test
