// The conformance suite: invalid calls, allocations, and the caller's floating-point mode.

#include "tests/support/allocations.h"
#include "tests/support/codec_conformance.h"

#include <tersor/buffer.h>

#include <limits>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tersor::test {

void link_conformance_calls() {}

namespace {

/// A call prepared for a test to break.
class SpoiltCall : public CodecHarness {
 public:
  explicit SpoiltCall(const std::string& spec)
      : CodecHarness(spec, {300, 20}), frame(frame_space()) {}

  std::string encode_error(const std::function<void(EncodeCall&)>& spoil) {
    EncodeCall call = encode_call();
    spoil(call);
    return error_of<InvalidArgumentError>([&] { codec().encode(call, frame.span()); });
  }

  std::string decode_error(const std::function<void(DecodeCall&)>& spoil) {
    const std::vector<GuardedBytes> frames = {encode()};
    DecodeCall call = decode_call(frames);
    spoil(call);
    return error_of<InvalidArgumentError>([&] { codec().decode(call); });
  }

  GuardedBytes frame;

 private:
  std::size_t frame_space() const { return plan().frame_bytes; }
};

TEST_P(CodecConformance, RejectsInvalidSpans) {
  SpoiltCall call(spec());
  GuardedValues other(300, Dtype::kBf16), integers(300, Dtype::kI32), shorter(299, Dtype::kF32);
  std::vector<ConstValueSpan> spans = {call.encode_call().gradients.begin(),
                                       call.encode_call().gradients.end()};
  const auto with_first = [&](ConstValueSpan first) {
    spans[0] = first;
    return call.encode_error([&](EncodeCall& spoilt) { spoilt.gradients = spans; });
  };
  EXPECT_EQ(call.encode_error([](EncodeCall&) {}), "");
  EXPECT_TRUE(says(with_first(shorter.span()), "has 300 values, its span 299"));
  EXPECT_TRUE(says(with_first(other.span()), "one dtype"));
  EXPECT_TRUE(says(with_first(integers.span()), "f32, bf16 or f16"));
  const auto* odd = call.frame.span().data() + 1;
  EXPECT_TRUE(says(with_first({odd, 300, Dtype::kF32}), "multiple"));
  EXPECT_TRUE(says(
      call.encode_error([](EncodeCall& spoilt) { spoilt.gradients = spoilt.gradients.first(1); }),
      "1 spans for 2 segments"));
  EXPECT_TRUE(
      says(call.decode_error([](DecodeCall& spoilt) { spoilt.outputs = spoilt.outputs.first(1); }),
           "1 spans for 2 segments"));
  EXPECT_TRUE(
      says(call.decode_error([](DecodeCall& spoilt) { spoilt.frames = {}; }), "frames is empty"));
  EXPECT_THROW(ConstValueSpan(nullptr, 3, Dtype::kF32), InvalidArgumentError);
}

bool has_device() {
  return test_device() != nullptr || error_of<CudaError>([] { const Stream stream; }).empty();
}

TEST_P(CodecConformance, DeviceMemoryNeedsADevice) {
  if (has_device()) GTEST_SKIP() << "there is one";
  SpoiltCall call(spec());
  const EncodeCall good = call.encode_call();
  std::vector<ConstValueSpan> spans(good.gradients.begin(), good.gradients.end());
  spans[0] = {spans[0].pointer(), spans[0].count(), spans[0].dtype(), Memory::kDevice};
  EncodeCall spoilt = good;
  spoilt.gradients = spans;
  EXPECT_TRUE(
      says(error_of<CudaError>([&] { call.codec().encode(spoilt, call.frame.span()); }), "CUDA"));
  EXPECT_THROW(call.codec().plan({.segments = call.segments, .memory = Memory::kDevice}),
               CudaError);
}

TEST_P(CodecConformance, RejectsShortOrMisalignedBuffers) {
  CodecHarness harness(spec(), {70'001}, {.dtype = Dtype::kBf16, .threads = 2});
  const Plan plan = harness.plan();
  GuardedBytes frame(plan.frame_bytes);
  const ByteSpan space = frame.span();
  const auto encode = [&](ByteSpan target) {
    return error_of<InvalidArgumentError>(
        [&] { harness.codec().encode(harness.encode_call(), target); });
  };
  EXPECT_EQ(encode(space), "");
  EXPECT_TRUE(says(encode(space.first(space.size() - 1)), "too short"));
  EXPECT_TRUE(says(encode({}), "too short"));
  GuardedBytes odd(plan.frame_bytes, 8);
  EXPECT_TRUE(says(encode(odd.span()), "multiple of 16"));
  EXPECT_TRUE(odd.intact() && frame.intact());
  if (plan.workspace_bytes == 0) return;
  EncodeCall call = harness.encode_call();
  DecodeCall decode = harness.decode_call({frame, frame, frame, frame});
  call.execution.workspace = decode.execution.workspace = {};
  const auto both = error_of<InvalidArgumentError>([&] {
    harness.codec().encode(call, space);
    harness.codec().decode(decode);
  });
  EXPECT_TRUE(says(both, "workspace"));
}

TEST_P(CodecConformance, RejectsInvalidFeedbackStates) {
  SpoiltCall call(spec());
  if (!has_feedback()) {
    GuardedValues residual(300, Dtype::kF32), rest(20, Dtype::kF32);
    const std::vector<SegmentState> states = {{residual.span(), residual.span()},
                                              {rest.span(), rest.span()}};
    EXPECT_TRUE(says(call.encode_error([&](EncodeCall& spoilt) { spoilt.states = states; }),
                     "no feedback"));
    return;
  }
  EXPECT_TRUE(
      says(call.encode_error([](EncodeCall& spoilt) { spoilt.states = {}; }), "has no states"));
  EXPECT_TRUE(
      says(call.encode_error([](EncodeCall& spoilt) { spoilt.states = spoilt.states.first(1); }),
           "1 states for 2 segments"));
  std::vector<SegmentState> states(call.encode_call().states.begin(),
                                   call.encode_call().states.end());
  GuardedValues half(300, Dtype::kF16), shorter(299, Dtype::kF32);
  const auto with_first = [&](GuardedValues& values) {
    states[0] = {values.span(), values.span()};
    return call.encode_error([&](EncodeCall& spoilt) { spoilt.states = states; });
  };
  EXPECT_TRUE(says(with_first(half), "f32 or bf16"));
  EXPECT_TRUE(says(with_first(shorter), "has 300 values, its span 299"));
}

TEST_P(CodecConformance, RejectsUnsupportedCalls) {
  CodecHarness harness(spec(), {300});
  const std::vector<GuardedBytes> frames = {harness.encode()};
  GuardedValues raw(300, Dtype::kF32);
  if (!allows(Exchange::kTwoShot)) {
    EXPECT_THROW(harness.reduce(frames), InvalidArgumentError);
  }
  if (!allows(Exchange::kNativeSum)) {
    EXPECT_THROW(harness.codec().encode_native(harness.encode_call(), 1.0f, raw.span()),
                 InvalidArgumentError);
  }
  DecodeCall call = harness.decode_call(frames);
  EXPECT_THROW(harness.codec().absorb(call, {}), InvalidArgumentError);
  EXPECT_THROW(harness.codec().plan({.segments = harness.segments, .contributions = 0}),
               InvalidArgumentError);
  call.window_first = divisible() ? 0 : 1;  // sliced codecs have no windows; 1 + 300 exceeds
  EXPECT_THROW(harness.codec().decode(call), InvalidArgumentError);
}

TEST_P(CodecConformance, SecondCallsAllocateNothing) {
  if (test_device() != nullptr) GTEST_SKIP() << "the tests themselves allocate for a device";
  const bool reduces = allows(Exchange::kTwoShot);
  for (const unsigned threads : {1, 2}) {
    CodecHarness harness(spec(), {70'001, 300}, {.threads = threads, .contributions = 70});
    const std::vector<GuardedBytes> frames(70, harness.encode());
    GuardedBytes target(harness.plan().frame_bytes);
    const EncodeCall encode = harness.encode_call();
    const ReduceCall reduce = harness.reduce_call(frames);
    const DecodeCall decode = harness.decode_call(frames);
    const auto calls = [&] {
      harness.codec().encode(encode, target.span());
      harness.codec().decode(decode);
      if (reduces) harness.codec().reduce(reduce, target.span());
    };
    calls();
    const std::size_t before = allocations();
    calls();
    EXPECT_EQ(allocations() - before, 0u) << threads << " threads";
  }
}

TEST_P(CodecConformance, ResultIsIndependentOfCallerFloatMode) {
#if defined(__x86_64__)
  if (test_device() != nullptr) GTEST_SKIP() << "a device has a mode of its own";
  CodecHarness harness(spec(), {3000, 70'001}, {.scale = 0x1p-120f});
  const GuardedBytes expected = harness.encode();
  const std::vector<float> residuals = harness.residuals_out();
  harness.decode({expected}, DecodeMode::kAssign, 0x1p-10f);
  const std::vector<float> outputs = harness.outputs();
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | 0x8040 | 0x6000);  // flush-to-zero, denormals-are-zero, round towards zero
  const GuardedBytes found = harness.encode();
  harness.decode({expected}, DecodeMode::kAssign, 0x1p-10f);
  const unsigned after = _mm_getcsr();
  _mm_setcsr(mode);
  EXPECT_EQ(after & ~0x3fu, (mode | 0x8040 | 0x6000) & ~0x3fu);
  EXPECT_TRUE(same_bytes(found.span(), expected.span()));
  EXPECT_TRUE(same_values(harness.residuals_out(), residuals));
  EXPECT_TRUE(same_values(harness.outputs(), outputs));
#else
  GTEST_SKIP() << "no way to change the float mode here";
#endif
}

TEST_P(CodecConformance, CanonicalSpecRoundTrips) {
  const auto codec = make_codec(spec());
  EXPECT_EQ(make_codec(codec->spec().text())->spec().text(), codec->spec().text());
  EXPECT_EQ(make_codec(codec->spec().text())->id(), codec->id());
}

}  // namespace
}  // namespace tersor::test
