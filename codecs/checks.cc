#include "codecs/checks.h"

#include "codecs/apart.h"
#include "codecs/options.h"
#include "kernels/device/device.h"
#include "kernels/device/device_frame.h"

#include <tersor/align.h>

#include <tersor/error.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

namespace tersor::encoding {
namespace {

std::string segment_text(std::size_t index) { return "segment " + std::to_string(index); }

bool is_aligned(const void* pointer, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

void check_list(const Codec& codec, const char* what, std::size_t entries, std::size_t segments) {
  if (entries != segments)
    fail(codec, std::to_string(entries) + " " + what + " for " + std::to_string(segments) +
                    " segments; give one for each");
}

void check_count(const Codec& codec, std::size_t index, std::size_t found, std::size_t expected) {
  if (found != expected)
    fail(codec, segment_text(index) + " has " + std::to_string(expected) + " values, its span " +
                    std::to_string(found));
}

template <typename Span>
void check_span(const Codec& codec, std::size_t index, const Span& span, Dtype dtype) {
  check_memory(codec, span.memory());
  if (!is_gradient_dtype(span.dtype()))
    fail(codec, "gradients are f32, bf16 or f16, but " + segment_text(index) + " is " +
                    std::string(dtype_name(span.dtype())));
  if (span.dtype() != dtype)
    fail(codec, "all segments of a call have one dtype, but " + segment_text(index) + " is " +
                    std::string(dtype_name(span.dtype())) + " and segment 0 " +
                    std::string(dtype_name(dtype)));
  if (!is_aligned(span.pointer(), dtype_bytes(dtype)))
    fail(codec, segment_text(index) + " does not begin at a multiple of its values' " +
                    std::to_string(dtype_bytes(dtype)) + " bytes");
}

template <typename Span>
Dtype check_spans(const Codec& codec, std::span<const Segment> segments,
                  std::span<const Span> values) {
  check_list(codec, "spans", values.size(), segments.size());
  const Dtype dtype = values.empty() ? Dtype::kF32 : values.front().dtype();
  for (std::size_t i = 0; i < values.size(); ++i) check_span(codec, i, values[i], dtype);
  return dtype;
}

template <typename Span>
void check_counts(const Codec& codec, std::span<const Segment> segments,
                  std::span<const Span> values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    check_count(codec, i, values[i].count(), segments[i].count);
}

void check_window(const Codec& codec, const DecodeCall& call) {
  if (codec.traits().sent_divisible)
    fail(codec, "does not read windows, because its segments may be cut; encode the part instead");
  if (call.segments.size() != 1)
    fail(codec, "a window needs one segment, not " + std::to_string(call.segments.size()));
  const std::size_t count = call.segments[0].count;
  const std::size_t wanted = call.outputs[0].count();
  if (*call.window_first > count || wanted > count - *call.window_first)
    fail(codec, "a window of " + std::to_string(wanted) + " values from " +
                    std::to_string(*call.window_first) + " on lies outside a segment of " +
                    std::to_string(count));
}

void check_state_pair(const Codec& codec, std::size_t index, const ConstValueSpan& in,
                      const ValueSpan& out) {
  check_memory(codec, in.memory());
  check_memory(codec, out.memory());
  const bool known = in.dtype() == Dtype::kF32 || in.dtype() == Dtype::kBf16;
  if (!known || out.dtype() != in.dtype())
    fail(codec, "states are f32 or bf16, in and out alike; those of " + segment_text(index) +
                    " are " + std::string(dtype_name(in.dtype())) + " and " +
                    std::string(dtype_name(out.dtype())));
  const std::size_t alignment = dtype_bytes(in.dtype());
  if (!is_aligned(in.pointer(), alignment) || !is_aligned(out.pointer(), alignment))
    fail(codec, "the state of " + segment_text(index) + " is not aligned to its values");
}

void check_state(const Codec& codec, std::size_t index, const SegmentState& state,
                 std::size_t count) {
  check_state_pair(codec, index, state.residual_in, state.residual_out);
  check_count(codec, index, state.residual_in.count(), count);
  check_count(codec, index, state.residual_out.count(), count);
}

void check_state_list(const Codec& codec, std::span<const Segment> segments,
                      std::span<const SegmentState> states) {
  if (states.empty()) return;
  if (!codec.has_feedback())
    fail(codec, "the call has states, but the codec has no feedback; add \"+ef\" to its spec");
  check_list(codec, "states", states.size(), segments.size());
  for (std::size_t i = 0; i < states.size(); ++i)
    check_state(codec, i, states[i], segments[i].count);
}

template <typename Bytes>
void check_space(const Codec& codec, const char* what, const Bytes& bytes, std::size_t needed,
                 std::size_t alignment) {
  if (bytes.size() < needed)
    fail(codec, std::string(what) + " of " + std::to_string(bytes.size()) +
                    " bytes is too short; this call needs " + std::to_string(needed));
  if (needed != 0 && bytes.data() == nullptr) fail(codec, std::string(what) + " is null");
  if (!is_aligned(bytes.data(), alignment))
    fail(codec, std::string(what) + " does not begin at a multiple of " +
                    std::to_string(alignment) + " bytes");
}

/// Compares the pointers of a call with its declared memory, and with each other.
class MemoryCheck {
 public:
  MemoryCheck(const Codec& codec, Memory memory) : codec_(codec), memory_(memory) {}

  template <typename Span>
  void values(const char* what, std::span<const Span> list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      if constexpr (std::is_same_v<Span, ValueSpan>)
        spans_.write(what, list[i].pointer(), list[i].bytes());
      else
        spans_.read(what, list[i].pointer(), list[i].bytes());
      same_memory(what, i, list[i]);
      if (is_checked(i, list.size())) pointer_of(what, i, list[i]);
    }
  }

  void states(std::span<const SegmentState> list) {
    for (std::size_t i = 0; i < list.size(); ++i)
      state("the residual", {i, list.size()}, list[i].residual_in, list[i].residual_out);
  }

  void memories(std::span<const SegmentMemory> list) {
    for (std::size_t i = 0; i < list.size(); ++i)
      state("the codec's memory", {i, list.size()}, list[i].in, list[i].out);
  }

  /// Checks a pointer of a segment, or of the whole call.
  void pointer(const char* what, const void* pointer,
               std::optional<std::size_t> segment = {}) const {
    if (memory_ == Memory::kHost || pointer == nullptr) return;
    try {
      kernels::check_device_pointer(pointer);
    } catch (const InvalidArgumentError& error) {
      fail(codec_, what + (segment ? " of " + segment_text(*segment) : "") + ": " + error.what());
    }
  }

  void active_words(std::span<const Segment> segments) const {
    for (std::size_t i = 0; i < segments.size(); ++i)
      if (is_checked(i, segments.size())) pointer("the word active", segments[i].active, i);
  }

  void written(const char* what, ByteSpan bytes) {
    spans_.write(what, bytes.data(), bytes.size());
    if (!bytes.empty()) pointer(what, bytes.data());
  }

  void frames(std::span<const ConstByteSpan> list) {
    if (memory_ == Memory::kDevice && list.size() > kernels::kMaxDeviceFrames)
      fail(codec_, "a call on a device reads at most " + std::to_string(kernels::kMaxDeviceFrames) +
                       " frames, not " + std::to_string(list.size()));
    for (const ConstByteSpan& frame : list) {
      spans_.read("a payload", frame.data(), frame.size());
      if (!frame.empty()) pointer("a payload", frame.data());
    }
  }

  void words(const StateWords* in, const StateWords* out) const {
    if (!is_aligned(in, alignof(StateWords)) || !is_aligned(out, alignof(StateWords)))
      fail(codec_, "state words do not begin at a multiple of 8 bytes");
    pointer("the state words", in);
    pointer("the next state words", out);
  }

  void execution(const Execution& execution) {
    if (memory_ == Memory::kDevice) kernels::check_stream(execution.stream);
    written("the workspace", execution.workspace);
    written("the round state", execution.round_state);
    pointer("the fault record", execution.fault);
  }

  /// Call this last. Checks that written memory overlaps only a state's own `in`.
  void disjoint() const {
    if (const std::string overlap = spans_.overlap(); !overlap.empty()) fail(codec_, overlap);
  }

 private:
  /// Asking the runtime about a pointer takes longer than encoding a small segment. Only some
  /// entries of long lists are checked.
  static bool is_checked(std::size_t index, std::size_t entries) {
    constexpr std::size_t kCheckedEntries = 16;
    return index % ceil_div(entries, kCheckedEntries) == 0 || index + 1 == entries;
  }

  /// An entry of a list.
  struct Index {
    std::size_t index, entries;
  };

  void state(const char* what, Index at, const ConstValueSpan& in, const ValueSpan& out) {
    spans_.update(what, in, out);
    for (const ConstValueSpan& span : {in, ConstValueSpan(out)}) {
      if (span.empty()) continue;
      same_memory(what, at.index, span);
      if (is_checked(at.index, at.entries)) pointer_of(what, at.index, span);
    }
  }

  template <typename Span>
  void pointer_of(const char* what, std::size_t segment, const Span& span) const {
    if (!span.empty()) pointer(what, span.pointer(), segment);
  }

  template <typename Span>
  void same_memory(const char* what, std::size_t segment, const Span& span) const {
    if (span.memory() != memory_)
      fail(codec_, std::string("the call is ") + location_name(memory_) + ", but " + what + " of " +
                       segment_text(segment) + " is " + location_name(span.memory()));
  }

  static const char* location_name(Memory memory) {
    return memory == Memory::kHost ? "on the host" : "on a device";
  }

  const Codec& codec_;
  Memory memory_;
  CallMemory spans_;
};

}  // namespace

void check_memory(const Codec& codec, Memory memory) {
  if (memory == Memory::kHost) return;
  try {
    kernels::require_device();
  } catch (const CudaError& error) {
    throw CudaError("codec " + codec.spec().text() + ": " + error.what());
  }
}

void check_one_memory(const Codec& codec, const EncodeCall& call, ByteSpan frame) {
  MemoryCheck check(codec, memory_of(call));
  check.values("the gradient", call.gradients);
  check.states(call.states);
  check.memories(call.memories);
  check.active_words(call.segments);
  check.words(call.words, call.words_out);
  check.execution(call.execution);
  check.written("the frame", frame);
  check.disjoint();
}

void check_one_memory(const Codec& codec, const DecodeCall& call) {
  MemoryCheck check(codec, memory_of(call));
  check.values("the output", call.outputs);
  check.memories(call.memories);
  check.execution(call.execution);
  check.frames(call.frames);
  check.disjoint();
}

void check_one_memory(const Codec& codec, const ReduceCall& call, ByteSpan frame) {
  MemoryCheck check(codec, memory_of(call));
  check.states(call.states);
  check.words(call.words, call.words_out);
  check.execution(call.execution);
  check.frames(call.frames);
  check.written("the frame", frame);
  check.disjoint();
}

void check_one_memory(const Codec& codec, Memory memory, ConstValueSpan raw_values) {
  MemoryCheck(codec, memory)
      .values("the raw values", std::span<const ConstValueSpan>(&raw_values, 1));
}

Dtype check_values(const Codec& codec, std::span<const Segment> segments,
                   std::span<const ConstValueSpan> gradients) {
  const Dtype dtype = check_spans(codec, segments, gradients);
  check_counts(codec, segments, gradients);
  return dtype;
}

Dtype check_outputs(const Codec& codec, const DecodeCall& call) {
  const Dtype dtype = check_spans(codec, call.segments, call.outputs);
  if (call.window_first)
    check_window(codec, call);
  else
    check_counts(codec, call.segments, call.outputs);
  return dtype;
}

void check_states(const Codec& codec, const EncodeCall& call) {
  if (codec.has_feedback() && call.states.empty() && !call.segments.empty())
    fail(codec,
         "\"+ef\" keeps residuals, but the call has no states; give one SegmentState per segment, "
         "use a GradientReducer, or leave \"+ef\" out");
  check_state_list(codec, call.segments, call.states);
}

void check_states(const Codec& codec, const ReduceCall& call) {
  check_state_list(codec, call.segments, call.states);
}

void check_memories(const Codec& codec, std::span<const Segment> segments,
                    std::span<const SegmentMemory> memories) {
  if (memories.empty()) return;
  check_list(codec, "memories", memories.size(), segments.size());
  for (std::size_t i = 0; i < memories.size(); ++i)
    for (const ConstValueSpan span : {memories[i].in, ConstValueSpan(memories[i].out)}) {
      check_memory(codec, span.memory());
      const std::size_t count = codec.memory_count(segments[i]);
      if (span.count() != count || (count != 0 && span.dtype() != Dtype::kF32))
        fail(codec, "the memory of " + segment_text(i) + " is " + std::to_string(count) +
                        " values of f32, not " + std::to_string(span.count()) + " of " +
                        std::string(dtype_name(span.dtype())));
    }
}

void fail(const Codec& codec, const std::string& what) {
  throw InvalidArgumentError("codec " + codec.spec().text() + ": " + what);
}

void throw_unsupported(const Codec& codec, const char* what) {
  throw InvalidArgumentError("codec " + codec.spec().text() + " " + what);
}

void throw_no_frames(const Codec& codec) {
  fail(codec, "the codec has no frames; it sends only raw values, which a transport adds");
}

void check_native_factor(const Codec& codec, float factor) {
  if (!(factor > 0 && std::isfinite(factor)))
    fail(codec,
         "factor is " + number_text(factor) + "; give a finite number above 0 for raw values");
}

void check_no_window(const Codec& codec, const DecodeCall& call) {
  if (call.window_first) fail(codec, "the codec does not read windows");
}

void check_round(const Codec& codec, const FrameIdentity& identity, unsigned first, unsigned last) {
  if (identity.round < first || identity.round > last)
    fail(codec, "this call does not belong to round " + std::to_string(identity.round));
}

void check_execution(const Codec& codec, const PlanSizes& sizes, const Execution& execution) {
  check_space(codec, "a workspace", execution.workspace, sizes.workspace_bytes,
              kWorkspaceAlignment);
  check_space(codec, "round state", execution.round_state, sizes.round_state_bytes,
              kWorkspaceAlignment);
}

void check_frame_space(const Codec& codec, const PlanSizes& sizes, ByteSpan frame) {
  check_space(codec, "a frame", frame, sizes.frame_bytes, kSectionAlignment);
}

void check_frame_list(const Codec& codec, std::span<const ConstByteSpan> frames) {
  if (frames.empty()) fail(codec, "frames is empty; give at least one");
  for (const ConstByteSpan& frame : frames)
    check_space(codec, "a frame", frame, 0, kSectionAlignment);
}

void check_native(const Codec& codec, ConstValueSpan values, Dtype dtype, std::size_t count) {
  check_memory(codec, values.memory());
  if (values.dtype() != dtype || values.count() != count)
    fail(codec, "the raw values are " + std::to_string(count) + " of " +
                    std::string(dtype_name(dtype)) + ", not " + std::to_string(values.count()) +
                    " of " + std::string(dtype_name(values.dtype())));
  if (!is_aligned(values.pointer(), dtype_bytes(dtype)))
    fail(codec, "the raw values are not aligned to their type");
}

}  // namespace tersor::encoding
