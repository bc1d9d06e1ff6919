// Random calls on the host and on the device, in memory ending exactly at the calls' spans. Frames,
// residuals, state words and values must be bitwise equal.

#include "tests/device/expectations.h"
#include "tests/gpu/device_memory.h"
#include "tests/gpu/random_call.h"
#include "tests/gpu/twins.h"
#include "tests/support/codec_harness.h"
#include "tests/support/seeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

namespace tersor::test {
namespace {

using Part = RandomCall::Part;

constexpr const char* kVariable = "TERSOR_CALL_SEEDS";  // "17" or "1-1000"
constexpr const char* kSeedsOfCi = "1-1000";
constexpr std::size_t kBlock = 100;  // seeds per test

constexpr std::array kMemories = {Memory::kHost, Memory::kDevice};

/// The memory of one segment.
struct SegmentTwins {
  SegmentTwins(const RandomCall& call, const Codec& codec, std::size_t segment)
      : gradient(call.segments[segment].count, call.dtype, call.shift(Part::kGradient)),
        output(call.segments[segment].count, call.dtype, call.shift(Part::kOutput)),
        residual(call.segments[segment].count, call.residual_dtype, call.shift(Part::kResidual)),
        next_residual(call.segments[segment].count, call.residual_dtype,
                      call.shift(Part::kNextResidual)),
        memory(codec.memory_count(call.segments[segment]), Dtype::kF32, 0),
        next_memory(codec.memory_count(call.segments[segment]), Dtype::kF32, 0) {
    gradient.set(call.values(Part::kGradient, segment));
    residual.set(call.values(Part::kResidual, segment));
    memory.set(gaussian(codec.memory_count(call.segments[segment]), call.seed + segment));
  }
  bool intact() const {
    return gradient.intact() && output.intact() && residual.intact() && next_residual.intact() &&
           memory.intact() && next_memory.intact();
  }

  TwinValues gradient, output, residual, next_residual, memory, next_memory;
};

/// The arguments of a call in one memory.
struct Half {
  std::vector<Segment> segments;
  std::vector<ConstValueSpan> gradients;
  std::vector<SegmentState> states;
  std::vector<SegmentMemory> memories;
  std::vector<ValueSpan> outputs;
  std::vector<ConstByteSpan> frames;
  StateWords* words;
  Execution execution;
};

/// A random call in both memories, and the calls on both.
class CallTwins {
 public:
  explicit CallTwins(const RandomCall& call);

  void expect_same_encode();
  void expect_same_decode(DecodeMode mode, float factor);
  /// Does nothing if the codec has no raw values, or does not reduce.
  void expect_same_native();
  void expect_same_reduce();
  /// Compares rounds of native-only codecs.
  void expect_same_rounds();
  void expect_nothing_else();
  bool has_frames() const { return test::has_frames(plan_); }

 private:
  Plan plan(Memory memory) const;
  Half half(Memory memory);
  EncodeCall encode_call(const Half& half) const;
  DecodeCall decode_call(const Half& half) const;
  bool offers(Exchange exchange) const;
  void run_round(std::uint8_t round, TwinBytes& raw);

  void expect_same_frames(const TwinBytes& frames) const;
  void expect_same_states() const;
  void expect_same_memories() const;
  void expect_same_outputs() const;

  const RandomCall& call_;
  std::shared_ptr<const Codec> codec_;
  Plan plan_;
  FrameIdentity identity_;
  std::deque<SegmentTwins> segments_;
  TwinBytes frame_, sum_, round_state_;
  TwinObject<StateWords> words_;
  TwinObject<std::uint32_t> active_;
  TwinObject<FrameFault> fault_;
  GuardedBytes host_workspace_;
  Buffer device_workspace_;
};

CallTwins::CallTwins(const RandomCall& call)
    : call_(call),
      codec_(make_codec(call.spec)),
      plan_(plan(Memory::kHost)),
      identity_{.signature = call.seed, .checksum = call.checksum},
      frame_(plan_.frame_bytes),
      sum_(plan_.frame_bytes),
      round_state_(plan_.round_state_bytes),
      words_(call.words),
      active_(call.active.value_or(1)),
      fault_(FrameFault{}),
      host_workspace_(plan_.workspace_bytes, 0, Memory::kHost),
      device_workspace_(plan(Memory::kDevice).workspace_bytes, Memory::kDevice) {
  for (std::size_t i = 0; i < call.segments.size(); ++i) segments_.emplace_back(call, *codec_, i);
}

Plan CallTwins::plan(Memory memory) const {
  return codec_->plan({.segments = call_.segments,
                       .dtype = call_.dtype,
                       .contributions = call_.frames,
                       .memory = memory});
}

Half CallTwins::half(Memory memory) {
  Half half{.segments = call_.segments,
            .frames = {call_.frames, frame_.span(memory)},
            .words = words_.pointer(memory)};
  if (call_.active) half.segments.front().active = active_.pointer(memory);
  for (SegmentTwins& segment : segments_) {
    TwinValues& next = call_.in_place ? segment.residual : segment.next_residual;
    half.gradients.push_back(segment.gradient.span(memory));
    half.outputs.push_back(segment.output.span(memory));
    if (codec_->has_feedback())
      half.states.push_back({segment.residual.span(memory), next.span(memory)});
    if (call_.remembers && codec_->memory_count(half.segments[half.memories.size()]) != 0)
      half.memories.push_back(
          {segment.memory.span(memory),
           (call_.in_place ? segment.memory : segment.next_memory).span(memory)});
  }
  half.execution.memory = memory;
  half.execution.workspace =
      memory == Memory::kHost ? host_workspace_.span() : device_workspace_.span();
  half.execution.round_state = round_state_.span(memory);
  if (memory == Memory::kDevice) half.execution.fault = fault_.pointer(memory);
  return half;
}

EncodeCall CallTwins::encode_call(const Half& half) const {
  return {.segments = half.segments,
          .gradients = half.gradients,
          .states = half.states,
          .memories = half.memories,
          .words = half.words,
          .words_out = half.words,
          .random = {.key = call_.seed * 3 + 1},
          .identity = identity_,
          .execution = half.execution,
          .contributions = call_.frames};
}

DecodeCall CallTwins::decode_call(const Half& half) const {
  return {.segments = half.segments,
          .frames = half.frames,
          .outputs = half.outputs,
          .memories = half.memories,
          .identity = identity_,
          .execution = half.execution,
          .contributions = call_.frames};
}

bool CallTwins::offers(Exchange exchange) const {
  const auto& exchanges = plan_.rounds.front().exchanges;
  return std::ranges::find(exchanges, exchange) != exchanges.end();
}

void CallTwins::expect_same_encode() {
  for (const Memory memory : kMemories)
    codec_->encode(encode_call(half(memory)), frame_.span(memory));
  expect_same_frames(frame_);
  expect_same_states();
}

void CallTwins::expect_same_decode(DecodeMode mode, float factor) {
  for (std::size_t i = 0; mode == DecodeMode::kAdd && i < segments_.size(); ++i)
    segments_[i].output.set(call_.values(Part::kOutput, i));
  for (const Memory memory : kMemories) {
    const Half half = this->half(memory);
    DecodeCall call = decode_call(half);
    call.mode = mode;
    call.factor = factor;
    codec_->decode(call);
  }
  expect_same_outputs();
}

void CallTwins::expect_same_native() {
  if (!offers(Exchange::kNativeSum)) return;
  const Round& round = plan_.rounds.front();
  TwinValues raw(round.native_count, round.native_dtype, call_.shift(Part::kOutput));
  for (const Memory memory : kMemories) {
    const Half half = this->half(memory);
    codec_->encode_native(encode_call(half), call_.native_factor, raw.span(memory));
    DecodeCall back = decode_call(half);
    back.frames = {};
    back.factor = 0.5f;
    codec_->decode_native(back, raw.span(memory));
  }
  expect_same_values(raw.floats(Memory::kHost), raw.floats(Memory::kDevice), "bare value");
  EXPECT_TRUE(raw.intact());
  expect_same_states();
  expect_same_outputs();
}

void CallTwins::expect_same_reduce() {
  if (!offers(Exchange::kTwoShot)) return;
  for (const Memory memory : kMemories) {
    const Half half = this->half(memory);
    codec_->reduce({.segments = half.segments,
                    .dtype = call_.dtype,
                    .frames = half.frames,
                    .factor = call_.native_factor,
                    .states = half.states,
                    .random = {.key = 9, .step = 4},
                    .identity = identity_,
                    .execution = half.execution},
                   sum_.span(memory));
  }
  expect_same_frames(sum_);
  expect_same_states();
}

/// Decodes the encoded raw values unchanged.
void CallTwins::run_round(std::uint8_t round, TwinBytes& raw) {
  const Round& plan = plan_.rounds[round];
  for (const Memory memory : kMemories) {
    const Half half = this->half(memory);
    const ValueSpan values(raw.span(memory).data(), plan.native_count, plan.native_dtype, memory);
    EncodeCall call = encode_call(half);
    DecodeCall back = decode_call(half);
    back.frames = {};
    back.factor = 0.5f;
    call.identity.round = back.identity.round = round;
    codec_->encode_native(call, call_.native_factor, values);
    if (round + std::size_t{1} == plan_.rounds.size())
      codec_->decode_native(back, values);
    else
      codec_->absorb(back, values);
  }
}

void CallTwins::expect_same_rounds() {
  for (std::uint8_t round = 0; round < plan_.rounds.size(); ++round) {
    const std::size_t bytes = dtype_bytes(plan_.rounds[round].native_dtype);
    TwinBytes raw(plan_.rounds[round].native_count * bytes, call_.shift(Part::kOutput) * bytes);
    run_round(round, raw);
    EXPECT_EQ(raw.bytes(Memory::kHost), raw.bytes(Memory::kDevice)) << "round " << +round;
    EXPECT_EQ(round_state_.bytes(Memory::kHost), round_state_.bytes(Memory::kDevice))
        << "round " << +round;
    EXPECT_TRUE(raw.intact() && round_state_.intact());
  }
  expect_same_states();
  expect_same_memories();
  expect_same_outputs();
}

void CallTwins::expect_nothing_else() {
  EXPECT_NO_THROW(throw_if_faulty(fault_.value(Memory::kDevice)));
  EXPECT_TRUE(frame_.intact() && sum_.intact() && host_workspace_.intact());
  EXPECT_TRUE(std::ranges::all_of(segments_, &SegmentTwins::intact));
}

/// Compares only the bytes of the frame. Later bytes are undefined.
void CallTwins::expect_same_frames(const TwinBytes& frames) const {
  const auto host = frames.bytes(Memory::kHost), device = frames.bytes(Memory::kDevice);
  const std::size_t used = frame_bytes(host);
  expect_same_frame(std::span(host).first(used), std::span(device).first(used));
}

void CallTwins::expect_same_states() const {
  expect_same_words(words_.value(Memory::kHost), words_.value(Memory::kDevice));
  for (const SegmentTwins& segment : segments_) {
    if (!codec_->has_feedback()) continue;
    const TwinValues& next = call_.in_place ? segment.residual : segment.next_residual;
    expect_same_values(next.floats(Memory::kHost), next.floats(Memory::kDevice), "residual");
  }
}

void CallTwins::expect_same_memories() const {
  for (const SegmentTwins& segment : segments_) {
    const TwinValues& next = call_.in_place ? segment.memory : segment.next_memory;
    if (call_.remembers)
      expect_same_values(next.floats(Memory::kHost), next.floats(Memory::kDevice), "memory");
  }
}

void CallTwins::expect_same_outputs() const {
  for (const SegmentTwins& segment : segments_)
    expect_same_values(segment.output.floats(Memory::kHost), segment.output.floats(Memory::kDevice),
                       "decoded value");
}

void expect_same_everything(const RandomCall& call) {
  CallTwins twins(call);
  if (!twins.has_frames()) {
    twins.expect_same_rounds();
    return twins.expect_nothing_else();
  }
  twins.expect_same_encode();
  twins.expect_same_decode(DecodeMode::kAssign, 1.0f);
  twins.expect_same_decode(DecodeMode::kAdd, 0.25f);
  twins.expect_same_native();
  twins.expect_same_reduce();
  twins.expect_nothing_else();
}

using Seeds = std::vector<std::uint64_t>;

/// Blocks of seeds, for parallel ctest runs.
std::vector<Seeds> blocks() {
  const Seeds seeds = seeds_of(kVariable, kSeedsOfCi);
  std::vector<Seeds> blocks;
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    if (i % kBlock == 0) blocks.emplace_back();
    blocks.back().push_back(seeds[i]);
  }
  return blocks;
}

class RandomCalls : public ::testing::TestWithParam<Seeds> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomCalls, ::testing::ValuesIn(blocks()), [](const auto& seeds) {
  return std::to_string(seeds.param.front()) + "To" + std::to_string(seeds.param.back());
});

TEST_P(RandomCalls, HostAndDeviceAgree) {
  for (const std::uint64_t seed : GetParam()) {
    const RandomCall call = draw_call(seed);
    SCOPED_TRACE(call.text() + "\nrepeat with: " + kVariable + "=" + std::to_string(seed) +
                 " tersor_gpu_test --gtest_filter=*RandomCalls*");
    ASSERT_NO_THROW(expect_same_everything(call));
  }
}

}  // namespace
}  // namespace tersor::test
