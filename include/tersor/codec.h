// The contract of a codec: gradient segments in, a payload out, and back. A codec is a value with
// options and no state, safe to use from many threads; it never sees a rank, and it allocates
// nothing once its plan is made. docs/contracts.md tells how calls make up an exchange.
#pragma once

#include <tersor/modes.h>
#include <tersor/span.h>
#include <tersor/spec.h>
#include <tersor/stream.h>
#include <tersor/threads.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// One parameter's gradient, or a part of it: where it lies, not the values themselves.
struct Segment {
  std::size_t count = 0;          ///< values, from 0 to beyond 2^32
  std::uint32_t parameter = 0;    ///< index of the parameter; random numbers depend on it
  std::uint64_t first_index = 0;  ///< where the segment begins in its parameter, in values
  std::size_t rows = 0;           ///< shape, for codecs that need one; 0: not known
  std::size_t columns = 0;
  /// A word in the gradient's memory; 0 there: `encode` sends zeros and keeps the state (a
  /// parameter that had no gradient in this step). Null: active. Not looked at by any other call.
  const std::uint32_t* active = nullptr;
};

/// What feedback carries from step to step for one segment. In and out may be one span (in place)
/// or two (so that a step can be thrown away). f32 or bf16, as many values as the segment.
struct SegmentState {
  ConstValueSpan residual_in;
  ValueSpan residual_out;
};

/// What a codec itself carries from step to step for one segment (Codec::memory_count), beside a
/// residual: f32, zeros at first, the same on all ranks. In and out may be one span or two.
struct SegmentMemory {
  ConstValueSpan in;
  ValueSpan out;
};

/// The words of a state, in the gradient's memory, so that a replayed graph reads new ones.
/// What is sent is p = gradient_factor · gradient + residual_factor · residual (by a reduction:
/// factor · sum + residual_factor · residual); without a residual it is the first alone.
struct StateWords {
  std::uint32_t step = 0;
  float gradient_factor = 1.0f;
  float residual_factor = 1.0f;
  std::uint32_t reserved = 0;
  std::uint64_t overflows = 0;  ///< finite values that became infinite as f16
};
static_assert(sizeof(StateWords) == 24);

/// Of workspaces and kept memory, in bytes.
inline constexpr std::size_t kWorkspaceAlignment = 64;

/// What a call may use: threads on a host, a stream on a device, scratch memory of the plan's
/// sizes. A call on a device is queued on its stream and returns at once: all memory that it names
/// on the device (gradients, states, words, frames, workspace, fault) stays as it is until the
/// stream has come past it; lists of segments and spans are copied.
struct Execution {
  Threads* threads = nullptr;  ///< null: the calling thread alone
  StreamView stream;
  /// At least Plan::workspace_bytes, aligned to kWorkspaceAlignment; lent until the call is done.
  ByteSpan workspace;
  /// At least Plan::kept_bytes, aligned so too; the same memory for all calls of one exchange,
  /// from the encode of round 0 to the last decode: what a codec of several rounds remembers in
  /// between. Calls on parts of the plan's segments (two-shot) get it too; their lists are as long
  /// as the plan's, empty parts included, so that segment i is segment i.
  ByteSpan kept;
  /// Where the call's memory lies, for calls whose lists are empty or bring no values (`reduce`
  /// without states). Others take it from their spans, all of which lie in one memory.
  Memory memory = Memory::kHost;
  /// Device calls: where a frame that is not what the call says is reported. Null: nowhere, the
  /// values are NaN all the same.
  FrameFault* fault = nullptr;
  /// Device calls without `words_out`: where overflows (see StateWords) are added. Null: nowhere.
  std::uint64_t* overflows = nullptr;
};

/// How ranks may exchange what one round of a codec yields.
enum class Exchange : std::uint8_t {
  kNativeSum,      ///< bare values, added by the transport
  kNativeMaximum,  ///< bare values, the largest kept by the transport
  kTwoShot,        ///< frames to the owners of the parts, `reduce` there, then all-gather
  kGather,         ///< frames to everybody, who decodes them all
};

/// One round of a codec, and the exchanges that it allows, best first.
struct Round {
  std::vector<Exchange> exchanges;
  Dtype native_dtype = Dtype::kF32;  ///< of the bare values, where an exchange is native
  std::size_t native_count = 0;      ///< how many bare values there are
};

/// What a plan is made from.
struct PlanRequest {
  std::span<const Segment> segments;
  Dtype dtype = Dtype::kF32;  ///< of the gradient
  std::size_t contributions =
      1;  ///< how many ranks' values the codes must hold when they are added
  Memory memory = Memory::kHost;
  unsigned threads = 1;  ///< that `Execution::threads` will have
};

/// What must be allocated for one list of segments.
struct PlanSizes {
  std::size_t frame_bytes = 0;      ///< capacity of a frame, header included; a multiple of 16
  std::size_t workspace_bytes = 0;  ///< the most that any call of this plan needs
  std::size_t kept_bytes = 0;       ///< of Execution::kept
};

/// Sizes and rounds for one list of segments. Whoever keeps to it allocates nothing afterwards.
struct Plan : PlanSizes {
  std::vector<Round> rounds;  ///< at least one
};

/// What a codec is able to do: asked instead of its type.
struct CodecTraits {
  bool divisible = true;     ///< a segment may be cut into parts and chunks
  bool lossless = false;     ///< decode returns what was encoded, but for the bits of a NaN
  std::size_t unit = 512;    ///< values; cuts are at its multiples; a power of two from 512 on
  bool needs_shape = false;  ///< segments have rows and columns, and are whole
  std::size_t block = 0;     ///< values, from a segment's start, encoded together; 0: all of it
};

/// Who reads a frame: what its header must say.
struct FrameIdentity {
  std::uint64_t signature = 0;
  Checksum checksum = Checksum::kOn;
  std::uint8_t round = 0;
};

/// Where random numbers come from. Equal (key, step, parameter, index) give equal numbers anywhere.
struct RandomSource {
  std::uint64_t key = 0;   ///< of the rank and phase; made by whoever knows them
  std::uint32_t step = 0;  ///< used where a call has no state words
};

/// Arguments of Codec::encode. Spans run parallel to `segments`.
struct EncodeCall {
  std::span<const Segment> segments;
  std::span<const ConstValueSpan> gradients;
  std::span<const SegmentState> states = {};     ///< empty: no feedback
  std::span<const SegmentMemory> memories = {};  ///< `in` is read; empty: the codec begins anew
  const StateWords* words = nullptr;             ///< read; null: factors 1, step from `random`
  StateWords* words_out = nullptr;  ///< written as words + 1 step, by the last call of an exchange
  RandomSource random = {};
  FrameIdentity identity = {};
  Execution execution = {};
  std::size_t contributions = 1;  ///< as in the plan: codes that are added leave room for as many
};

/// Arguments of Codec::decode: `factor` times the sum of the frames' values, taken in the frames'
/// order in f32 and rounded once to the outputs' dtype, is assigned or added.
struct DecodeCall {
  std::span<const Segment> segments;
  std::span<const ConstByteSpan> frames;
  std::span<const ValueSpan> outputs;
  DecodeMode mode = DecodeMode::kAssign;
  float factor = 1.0f;
  std::span<const SegmentMemory> memories = {};  ///< `out` is written by `decode_native`
  FrameIdentity identity = {};
  Execution execution = {};
  /// Where only a part of one segment is wanted (outputs[0] has as many values): its first value,
  /// from the segment's start. For codecs that are not divisible; others have their segments cut.
  std::optional<std::uint64_t> window_first = {};
  std::size_t contributions = 1;  ///< as in the plan
};

/// Arguments of Codec::reduce: several frames in, one out, in one pass: `factor` times their sum,
/// so that what is encoded of a mean is one. States are the owner's residuals, in units of what is
/// encoded; empty: none are kept.
struct ReduceCall {
  std::span<const Segment> segments;
  Dtype dtype = Dtype::kF32;  ///< of the gradient
  std::span<const ConstByteSpan> frames;
  float factor = 1.0f;
  std::span<const SegmentState> states = {};
  const StateWords* words = nullptr;
  StateWords* words_out = nullptr;
  RandomSource random = {};
  FrameIdentity identity = {};
  Execution execution = {};
};

/// Turns gradients into payloads and back. Public functions check their arguments once
/// (InvalidArgument, nothing touched) and call the codec's own part. Memory that a call writes
/// overlaps no other memory of the call, unless a state's in and out are one span.
class Codec {
 public:
  Codec(CodecSpec spec, std::uint16_t id) : spec_(std::move(spec)), id_(id) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// As asked for, with canonical options: equal specs are equal codecs.
  const CodecSpec& spec() const { return spec_; }
  std::uint16_t id() const { return id_; }
  bool has_feedback() const { return spec_.feedback != Feedback::kNone; }
  virtual CodecTraits traits() const = 0;

  /// Whether a plan takes such a segment, by its count and shape.
  virtual bool carries(const Segment&) const { return true; }
  /// How many values of SegmentMemory a segment has; 0 for codecs that carry residuals alone.
  virtual std::size_t memory_count(const Segment&) const { return 0; }

  /// Sizes and rounds. Throws InvalidArgument where the codec cannot carry such segments.
  Plan plan(const PlanRequest& request) const;

  /// Writes one frame, of at most Plan::frame_bytes, to 16-byte aligned memory. True bytes stand in
  /// its header.
  void encode(const EncodeCall& call, ByteSpan frame) const;

  /// Reads frames, at least one, each 16-byte aligned. Throws WireError where a frame is not what
  /// the call says, with nothing written, or where only its checksum is wrong: nothing was written
  /// then where values are added, which are worth keeping; where they are assigned it is known when
  /// all has been read, and the outputs are NaN (sparse codecs look first, and leave them as they
  /// were). Whatever a frame holds, nothing outside of the
  /// spans is read or written. On a device nobody waits for what a frame holds: the outputs are NaN
  /// in all these cases, and `execution.fault` says why.
  void decode(const DecodeCall& call) const;

  /// Adds frames in their order and encodes the sum, times the factor, into `frame`, which overlaps
  /// none of them. Only for codecs whose plan allows kTwoShot.
  /// Refuses frames as `decode` does. Where a checksum is wrong, new residuals are NaN, and readers
  /// refuse `frame`; sparse codecs look first, and leave all as it was. On a device `frame` is one
  /// of NaNs and residuals stay where a header is wrong, or a checksum that an earlier launch sums.
  void reduce(const ReduceCall& call, ByteSpan frame) const;

  /// Writes the bare values of a native round (Round::native_count of Round::native_dtype), each
  /// made from p · factor. With states only where the codec has feedback and its plan still offers
  /// a native exchange; the state then changes in the last round, as in `encode`.
  void encode_native(const EncodeCall& call, float factor, ValueSpan values) const;

  /// Takes the bare values that came back from the last round, a native one: `factor` times their
  /// meaning is assigned or added. `call.frames` is empty.
  void decode_native(const DecodeCall& call, ConstValueSpan values) const;

  /// For codecs of several rounds: takes what came back of any round but the last (frames of a
  /// gather, or bare values in `values`) into `call.execution.kept`. The outputs are those of the
  /// decode to come, and stay untouched.
  void absorb(const DecodeCall& call, ConstValueSpan values) const;

 protected:
  /// Called in every public function: allocates nothing. Throws InvalidArgument where the codec
  /// cannot carry such segments.
  virtual PlanSizes plan_sizes(const PlanRequest& request) const = 0;
  virtual std::vector<Round> plan_rounds(const PlanRequest& request) const = 0;
  virtual void do_encode(const EncodeCall& call, ByteSpan frame) const = 0;
  virtual void do_decode(const DecodeCall& call) const = 0;
  virtual void do_reduce(const ReduceCall& call, ByteSpan frame) const = 0;
  virtual void do_encode_native(const EncodeCall& call, float factor, ValueSpan values) const = 0;
  virtual void do_decode_native(const DecodeCall& call, ConstValueSpan values) const = 0;
  virtual void do_absorb(const DecodeCall& call, ConstValueSpan values) const = 0;

 private:
  CodecSpec spec_;
  std::uint16_t id_;
};

/// What the registry knows of a codec.
struct CodecInfo {
  std::string_view name;
  std::uint16_t id;               ///< on the wire, never reused
  std::string_view summary;       ///< one line
  std::vector<std::string> keys;  ///< "rounding=nearest|stochastic (nearest)"
};

/// All codecs that this build holds, in the registry's order.
std::vector<CodecInfo> codecs();

/// The codec of a spec. Throws InvalidArgument that lists the names, or the codec's keys or values,
/// where one is wrong.
std::shared_ptr<const Codec> make_codec(std::string_view spec);

}  // namespace tersor
