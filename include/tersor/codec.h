// The codec interface: gradient segments in, a payload out, and back. A codec has options and no
// state, is thread-safe, and knows no ranks. A codec allocates memory only for its plan.
// docs/inside/contracts.md describes how an exchange calls a codec.
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

/// The description of one parameter's gradient or of a part, without the values.
struct Segment {
  std::size_t count = 0;          ///< values, from 0 to beyond 2^32
  std::uint32_t parameter = 0;    ///< index of the parameter; selects random numbers
  std::uint64_t first_index = 0;  ///< index of the segment's first value in its parameter
  std::size_t rows = 0;           ///< shape, for codecs of matrices; 0 if unknown
  std::size_t columns = 0;        ///< see `rows`
  /// Points to a word in the gradient's memory. If the word is 0, `encode` sends zeros and keeps
  /// the state, because the parameter had no gradient in this step. Null means active. Only
  /// `encode` reads the word.
  const std::uint32_t* active = nullptr;
};

/// The residual of error feedback for one segment, carried from step to step. Both spans hold f32
/// or bf16 and as many values as the segment. Pass one span twice for an update in place, or two
/// spans to be able to discard a step.
struct SegmentState {
  ConstValueSpan residual_in;  ///< the residual before the call
  ValueSpan residual_out;      ///< the residual after the call
};

/// The codec's own memory for one segment (Codec::memory_count), carried from step to step in
/// addition to a residual. Both spans hold f32 values, initially zeros, equal on all ranks. Pass
/// one span twice or two spans.
struct SegmentMemory {
  ConstValueSpan in;  ///< the memory before the call
  ValueSpan out;      ///< the memory after the call
};

/// The words of a state. They lie in the gradient's memory, so a replayed CUDA graph reads the
/// current values. A codec encodes
///
///   p = gradient_factor · gradient + residual_factor · residual
///
/// and in a reduction p = factor · sum + residual_factor · residual. Without a residual, the second
/// term is absent.
struct StateWords {
  std::uint32_t step = 0;        ///< number of the step, for random numbers
  float gradient_factor = 1.0f;  ///< factor of the gradient
  float residual_factor = 1.0f;  ///< factor of the residual
  std::uint32_t reserved = 0;    ///< 0
  std::uint64_t overflows = 0;   ///< finite values that became infinite as f16
};
static_assert(sizeof(StateWords) == 24);

/// Alignment of workspaces and round state, in bytes.
inline constexpr std::size_t kWorkspaceAlignment = 64;

/// The resources of a call: threads on a host, a stream on a device, and scratch memory of the
/// plan's sizes. A call on a device queues work on its stream and returns. All device memory that
/// the call uses (gradients, states, words, frames, workspace, fault) must stay unchanged until the
/// stream has passed the call. Lists of segments and spans are copied.
struct Execution {
  Threads* threads = nullptr;  ///< null: only the calling thread
  StreamView stream;           ///< the stream of a call on a device
  /// At least Plan::workspace_bytes, aligned to kWorkspaceAlignment. The codec uses the workspace
  /// until the call is done.
  ByteSpan workspace;
  /// The round state: at least Plan::round_state_bytes, aligned to kWorkspaceAlignment. A codec of
  /// several rounds stores data here between rounds. Pass the same memory to all calls of one
  /// exchange, from the encode of round 0 to the last decode. Calls on parts of the plan's segments
  /// (two-shot) use this memory too. Their lists are as long as the plan's lists and contain empty
  /// parts, so segment i keeps its index i.
  ByteSpan round_state;
  /// The memory of calls with empty lists or without values (`reduce` without states). All other
  /// calls take the memory from their spans, which must all lie in the same memory.
  Memory memory = Memory::kHost;
  /// Device calls report a frame that differs from the call here. Null: no report. In both cases
  /// the values are NaN.
  FrameFault* fault = nullptr;
  /// Device calls without `words_out` add overflows (see StateWords) here. Null: nowhere.
  std::uint64_t* overflows = nullptr;
};

/// How ranks may exchange the output of one round of a codec.
enum class Exchange : std::uint8_t {
  kNativeSum,      ///< raw values, added by the transport
  kNativeMaximum,  ///< raw values; the transport takes the maximum
  kTwoShot,        ///< frames to the owners of the parts, `reduce` there, then all-gather
  kGather,         ///< frames to every rank; each rank decodes all frames
};

/// One round of a codec, with its allowed exchanges, best first.
struct Round {
  std::vector<Exchange> exchanges;   ///< allowed exchanges, best first
  Dtype native_dtype = Dtype::kF32;  ///< type of the raw values of a native exchange
  std::size_t native_count = 0;      ///< number of raw values
};

/// The input of Codec::plan.
struct PlanRequest {
  std::span<const Segment> segments;  ///< the described gradients
  Dtype dtype = Dtype::kF32;          ///< the gradient's dtype
  /// Number of ranks whose codes are added in one accumulator.
  std::size_t contributions = 1;
  Memory memory = Memory::kHost;  ///< memory of the gradients
  unsigned threads = 1;           ///< threads of the later `Execution::threads`
};

/// The memory that one list of segments needs.
struct PlanSizes {
  std::size_t frame_bytes = 0;        ///< capacity of a frame, header included; a multiple of 16
  std::size_t workspace_bytes = 0;    ///< the maximum over all calls of this plan
  std::size_t round_state_bytes = 0;  ///< bytes of Execution::round_state
};

/// Sizes and rounds for one list of segments. Calls within this plan allocate no memory.
struct Plan : PlanSizes {
  std::vector<Round> rounds;  ///< at least one round
};

/// The capabilities of a codec.
struct CodecTraits {
  bool divisible = true;            ///< True if a segment may be cut into parts and chunks.
  bool sent_divisible = divisible;  ///< The same for senders' frames only; see Codec::results.
  /// True if decode returns the encoded values exactly, except for the bits of a NaN.
  bool lossless = false;
  /// In values: segments are cut at multiples of `unit`, a power of two, at least 512.
  std::size_t unit = 512;
  bool needs_shape = false;  ///< True if segments need rows and columns, and must be whole.
  /// Values encoded together, counted from the segment's start; 0: the whole segment.
  std::size_t block = 0;
};

/// The values that the header of a frame must contain.
struct FrameIdentity {
  std::uint64_t signature = 0;        ///< signature of the collective; 0 outside a collective
  Checksum checksum = Checksum::kOn;  ///< True if the frame has a checksum
  std::uint8_t round = 0;             ///< index of the codec's round, from 0
};

/// The source of random numbers. Equal (key, step, parameter, index) give equal numbers on every
/// machine.
struct RandomSource {
  std::uint64_t key = 0;   ///< identifies rank and phase; the caller chooses the key
  std::uint32_t step = 0;  ///< used if a call has no state words
};

/// Arguments of Codec::encode and Codec::encode_native. All spans are parallel to `segments`.
struct EncodeCall {
  std::span<const Segment> segments;          ///< the described gradients
  std::span<const ConstValueSpan> gradients;  ///< the values of each segment
  std::span<const SegmentState> states = {};  ///< empty: no feedback
  /// Only `in` is read; empty: the codec starts without a memory.
  std::span<const SegmentMemory> memories = {};
  const StateWords* words = nullptr;  ///< read-only; null: factors 1, step from `random`
  /// The last call of an exchange writes `words` with step + 1 here.
  StateWords* words_out = nullptr;
  RandomSource random = {};       ///< random numbers of stochastic rounding
  FrameIdentity identity = {};    ///< contents of the frame's header
  Execution execution = {};       ///< resources of the call
  std::size_t contributions = 1;  ///< as in the plan: added codes leave room for this many ranks
};

/// Arguments of Codec::decode, decode_native and absorb. The frames' values are added in the
/// frames' order in f32, multiplied by `factor`, and rounded once to the outputs' dtype. `mode`
/// selects whether the result is assigned or added.
struct DecodeCall {
  std::span<const Segment> segments;             ///< the described gradients
  std::span<const ConstByteSpan> frames;         ///< the frames, added in this order
  std::span<const ValueSpan> outputs;            ///< destinations of each segment
  DecodeMode mode = DecodeMode::kAssign;         ///< assign or add
  float factor = 1.0f;                           ///< factor of the sum
  std::span<const SegmentMemory> memories = {};  ///< `decode_native` writes `out`
  FrameIdentity identity = {};                   ///< contents of the frame's header
  Execution execution = {};                      ///< resources of the call
  /// Codecs that are not divisible: decode only a part of one segment. The value is the index of
  /// the part's first value in the segment, and outputs[0] has the length of the part. Cut the
  /// segments of divisible codecs instead.
  std::optional<std::uint64_t> window_first = {};
  std::size_t contributions = 1;  ///< as in the plan
};

/// Arguments of Codec::reduce, which reads several frames and writes one frame in one pass. The
/// frame holds `factor` times the sum, so the encoded value of a mean is a mean. `states` are the
/// owner's residuals in units of the encoded values; empty: no residuals.
struct ReduceCall {
  std::span<const Segment> segments;          ///< the described gradients
  Dtype dtype = Dtype::kF32;                  ///< the gradient's dtype
  std::span<const ConstByteSpan> frames;      ///< the frames, added in this order
  float factor = 1.0f;                        ///< factor of the sum
  std::span<const SegmentState> states = {};  ///< the owner's residuals; empty: no residuals
  const StateWords* words = nullptr;          ///< as in EncodeCall
  StateWords* words_out = nullptr;            ///< as in EncodeCall
  RandomSource random = {};                   ///< random numbers of stochastic rounding
  FrameIdentity identity = {};                ///< contents of the frame's header
  Execution execution = {};                   ///< resources of the call
};

/// Converts gradients to payloads and back. Public functions check their arguments once, throw
/// InvalidArgumentError before they change anything, and then call the codec's virtual function.
/// Memory that a call writes must not overlap other memory of the call, except a state's in and out
/// as one span. All functions are thread-safe if concurrent calls use separate memory and thread
/// pools.
class Codec {
 public:
  /// `id` is the codec's number in the wire format.
  Codec(CodecSpec spec, std::uint16_t id) : spec_(std::move(spec)), id_(id) {}
  virtual ~Codec() = default;
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;

  /// Returns the spec with canonical options. Equal specs mean equal codecs.
  const CodecSpec& spec() const { return spec_; }
  /// Returns the codec's number in the wire format.
  std::uint16_t id() const { return id_; }
  /// True if the spec asks for error feedback ("+ef").
  bool has_feedback() const { return spec_.feedback != Feedback::kNone; }
  /// Returns the codec's capabilities.
  virtual CodecTraits traits() const = 0;

  /// Returns the codec of the frames that `reduce` writes: this codec, or the codec of the spec's
  /// option "result". `encode` and `decode` of this codec do not read or write such frames.
  virtual const Codec& results() const { return *this; }

  /// True if a plan accepts this segment's count and shape.
  virtual bool carries(const Segment&) const { return true; }
  /// Returns the number of values in a segment's SegmentMemory; 0 for a codec without its own
  /// memory.
  virtual std::size_t memory_count(const Segment&) const { return 0; }

  /// Returns the sizes and rounds for a list of segments. Throws InvalidArgumentError if the codec
  /// cannot encode these segments, for a dtype that is not a gradient's, and for 0 contributions.
  Plan plan(const PlanRequest& request) const;

  /// Writes one frame of at most Plan::frame_bytes to 16-byte aligned memory. The header contains
  /// the number of bytes in use. Throws InvalidArgumentError.
  void encode(const EncodeCall& call, ByteSpan frame) const;

  /// Decodes at least one frame and assigns or adds the sum of the frames' values to
  /// `call.outputs`. Frames are 16-byte aligned. Throws InvalidArgumentError, and WireError if a
  /// frame is malformed or differs from the call:
  /// - A bad header: nothing was written.
  /// - A bad checksum with kAdd: nothing was written.
  /// - A bad checksum with kAssign: the outputs are NaN (dense codecs) or unchanged (sparse
  /// codecs).
  ///
  /// No frame can cause an access outside the spans. Device calls never wait for a frame's content:
  /// in each of these cases the outputs are NaN, and `execution.fault` describes the fault.
  void decode(const DecodeCall& call) const;

  /// Adds frames in their order and encodes `factor` times the sum into `frame`, a frame of
  /// `results()` with the capacity of its plan. `frame` must not overlap the input frames. Only for
  /// codecs whose plan allows kTwoShot. Throws InvalidArgumentError, and WireError as `decode`
  /// does. After a bad checksum, new residuals are NaN, and readers reject `frame`; sparse codecs
  /// and codecs with the option result check first and change nothing. On a device, a bad header
  /// makes `frame` a frame of NaNs and leaves residuals unchanged. A bad checksum that an earlier
  /// launch verifies does the same.
  void reduce(const ReduceCall& call, ByteSpan frame) const;

  /// Writes the raw values of a native round (Round::native_count of Round::native_dtype), made
  /// from p · `factor`. Pass states only if the codec has feedback and its plan offers a native
  /// exchange. The state then changes in the last round, as in `encode`. Throws
  /// InvalidArgumentError.
  void encode_native(const EncodeCall& call, float factor, ValueSpan values) const;

  /// Decodes the raw values that the last, native round returned. Assigns or adds `call.factor`
  /// times the decoded values. `call.frames` is empty. Throws InvalidArgumentError.
  void decode_native(const DecodeCall& call, ConstValueSpan values) const;

  /// For codecs of several rounds: stores the result of any round except the last in
  /// `call.execution.round_state`. The result is the frames of a gather, or raw values in `values`.
  /// The outputs are the outputs of the later decode and stay unchanged. Throws
  /// InvalidArgumentError, and WireError for a bad frame.
  void absorb(const DecodeCall& call, ConstValueSpan values) const;

 protected:
  /// Every public function calls `plan_sizes`, which allocates no memory. Throws
  /// InvalidArgumentError if the codec cannot encode these segments.
  virtual PlanSizes plan_sizes(const PlanRequest& request) const = 0;
  /// The sizes of another codec, for codecs that consist of codecs.
  static PlanSizes sizes_of(const Codec& codec, const PlanRequest& request) {
    return codec.plan_sizes(request);
  }
  /// Returns the rounds of a plan.
  virtual std::vector<Round> plan_rounds(const PlanRequest& request) const = 0;
  /// `encode` after the checks of the arguments.
  virtual void do_encode(const EncodeCall& call, ByteSpan frame) const = 0;
  /// `decode` after the checks of the arguments.
  virtual void do_decode(const DecodeCall& call) const = 0;
  /// `reduce` after the checks of the arguments.
  virtual void do_reduce(const ReduceCall& call, ByteSpan frame) const = 0;
  /// `encode_native` after the checks of the arguments.
  virtual void do_encode_native(const EncodeCall& call, float factor, ValueSpan values) const = 0;
  /// `decode_native` after the checks of the arguments.
  virtual void do_decode_native(const DecodeCall& call, ConstValueSpan values) const = 0;
  /// `absorb` after the checks of the arguments.
  virtual void do_absorb(const DecodeCall& call, ConstValueSpan values) const = 0;

 private:
  CodecSpec spec_;
  std::uint16_t id_;
};

/// An option of a codec's spec: a word, or a number in (above, most].
struct CodecOption {
  std::string name;                     ///< the key in a spec
  std::vector<std::string> words = {};  ///< empty for a number
  double above = 0;                     ///< a number is larger than this limit
  double most = 0;                      ///< a number is at most this limit
  std::string standard = {};            ///< the default; empty if the codec does without a value
  std::string deprecated = {};          ///< a former name, accepted for one release; usually empty

  /// True if the value is a number.
  bool is_number() const { return words.empty(); }
  /// "nearest|stochastic", "(0, 1]"
  std::string range() const;
  /// "rounding=nearest|stochastic (nearest)"
  std::string help() const;
};

/// The registry's entry for a codec.
struct CodecInfo {
  std::string_view name;             ///< name of the codec in a spec
  std::uint16_t id;                  ///< number in the wire format, never reused
  std::string_view summary;          ///< one line of text
  std::vector<CodecOption> options;  ///< options in canonical order
};

/// Returns all codecs of this build, in the registry's order. Thread-safe.
std::vector<CodecInfo> codecs();

/// Returns the codec of a spec. Throws InvalidArgumentError for a malformed spec, an unknown name,
/// key or value (the message lists the valid ones), and an unavailable TERSOR_ISA. Thread-safe.
std::shared_ptr<const Codec> make_codec(std::string_view spec);

}  // namespace tersor
