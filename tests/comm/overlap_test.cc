// Refused overlaps between outputs and other memory of a call: codecs, collectives, reducers.
#include "tests/comm/ranks.h"
#include "tests/support/codec_harness.h"
#include "tests/support/errors.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

void expect_refused(const std::function<void()>& call) {
  EXPECT_NE(error_of<InvalidArgumentError>(call).find("overlaps"), std::string::npos);
}

/// Memory for calls with two segments of 256 values and a codec with feedback.
struct Segments {
  Segments() : codec(make_codec("int8+ef")), values(4 * 4096), work(1 << 16) {
    std::memset(values.pointer(), 0, values.bytes());
    segments[1].first_index = 256;
    for (Segment& one : segments) one.count = 256;
    const Plan plan = codec->plan({.segments = segments});
    execution.workspace = {work.pointer(), plan.workspace_bytes};
  }

  ValueSpan at(std::size_t first) { return {bytes() + first * 4, 256, Dtype::kF32}; }
  std::byte* bytes() { return values.pointer(); }
  ByteSpan frame(std::size_t first) { return {bytes() + first * 4, 1024}; }

  void encode(std::array<std::size_t, 2> gradient, std::array<std::size_t, 2> in,
              std::array<std::size_t, 2> out, std::size_t frame_at) {
    std::array<ConstValueSpan, 2> gradients;
    std::array<SegmentState, 2> states;
    for (std::size_t i = 0; i < 2; ++i) {
      gradients[i] = at(gradient[i]);
      states[i] = {at(in[i]), at(out[i])};
    }
    codec->encode(
        {.segments = segments, .gradients = gradients, .states = states, .execution = execution},
        frame(frame_at));
  }

  void decode(std::size_t frame_at, std::array<std::size_t, 2> out) {
    const std::array<ValueSpan, 2> outputs = {at(out[0]), at(out[1])};
    const ConstByteSpan frame_bytes = frame(frame_at).first(tersor::frame_bytes(frame(frame_at)));
    codec->decode({.segments = segments,
                   .frames = {&frame_bytes, 1},
                   .outputs = outputs,
                   .execution = execution});
  }

  std::shared_ptr<const Codec> codec;
  std::array<Segment, 2> segments;
  Buffer values, work;
  Execution execution;
};

TEST(Overlap, IsRejectedInCodecCalls) {
  Segments call;
  call.encode({0, 256}, {512, 768}, {512, 768}, 2048);
  call.encode({0, 0}, {512, 768}, {768 + 256, 768 + 512}, 2048);
  expect_refused([&] { call.encode({0, 256}, {512, 768}, {512, 760}, 2048); });
  expect_refused([&] { call.encode({0, 256}, {0, 768}, {0, 768}, 2048); });
  expect_refused([&] { call.encode({0, 256}, {512, 512}, {512, 512}, 2048); });
  expect_refused([&] { call.encode({0, 256}, {512, 768}, {512, 768}, 252); });
  expect_refused([&] { call.encode({0, 256}, {512, 768}, {512, 768}, 900); });
  call.decode(2048, {0, 256});
  expect_refused([&] { call.decode(2048, {0, 255}); });
  expect_refused([&] { call.decode(2048, {0, 2040}); });
}

TEST(Overlap, IsRejectedInCollectiveState) {
  run_ranks(2, {}, [](Transport& transport) {
    Values values(600);
    CollectiveState state;
    StateWords words;
    state.words = &words;
    CollectiveOptions options{.codec = "int8+ef", .algorithm = Algorithm::kOneShot};
    options.state = &state;
    const ValueSpan gradient = std::span(values).first(200);
    for (const std::size_t first : {0, 100, 199}) {
      state.residual = std::span(values).subspan(first, 200);
      expect_refused([&] { allreduce(transport, gradient, options); });
    }
    state.residual = std::span(values).subspan(200, 200);
    allreduce(transport, gradient, options);
  });
}

TEST(Overlap, IsRejectedAmongGradientsOfAStep) {
  run_ranks(2, {}, [](Transport& transport) {
    Values memory(300, 1.0f), free(100, 1.0f);
    GradientReducer reducer(transport, {.codec = "none"});
    const auto part = [&](std::size_t first) { return std::span(memory).subspan(first, 100); };
    reducer.add("a", part(0));
    reducer.add("b", part(99));
    reducer.add("c", std::span(free));
    reducer.ready("a");
    expect_refused([&] { reducer.ready("b"); });
    expect_refused([&] { reducer.ready("c", part(50)); });
    const ReadyGradient both[] = {{.name = "b", .gradient = part(150)},
                                  {.name = "c", .gradient = part(200)}};
    expect_refused([&] { reducer.ready(both); });
    reducer.ready("b", part(100));
    reducer.ready("c", part(200));
    reducer.wait();
    EXPECT_EQ(memory, Values(300, 1.0f));
  });
}

// Clearing the missing parameter's memory would change the gradient of the other parameter.
TEST(Reducer, MissingParameterOverlappingAnotherIsRejected) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(1000, 1.0f);
    GradientReducer reducer(
        transport,
        {.codec = "none", .reduction = Reduction::kSum, .missing = MissingGradient::kInactive});
    reducer.add("w", gradient);
    reducer.add("v", {.count = 1000});
    reducer.ready("v", gradient);
    expect_error<InvalidArgumentError>([&] { reducer.wait(); }, "overlaps that of \"v\"");
    Values other(1000, 7.0f);
    reducer.ready("w", other, Contribution::kNone);
    reducer.wait();
    EXPECT_EQ(gradient, Values(1000, 2.0f));
    EXPECT_EQ(other, Values(1000));
  });
}

}  // namespace
}  // namespace tersor::testing
