// Checks at the start of a codec's public functions: parallel lists, counts, dtypes, memory,
// pointers, states, capacity. Later code relies on these checks. Failed checks throw
// InvalidArgumentError (CudaError for device memory) with the value, the limit and a remedy.
// Successful checks allocate no memory.
#pragma once

#include <tersor/codec.h>

#include <cstddef>
#include <span>
#include <string>

namespace tersor::encoding {

#if TERSOR_HAS_CUDA
inline constexpr bool kHasDeviceKernels = true;
#else
inline constexpr bool kHasDeviceKernels = false;
#endif

/// Returns the memory of a call: the memory of its first span, or of its execution.
inline Memory memory_of(const EncodeCall& call) {
  return call.gradients.empty() ? call.execution.memory : call.gradients.front().memory();
}
inline Memory memory_of(const DecodeCall& call) {
  return call.outputs.empty() ? call.execution.memory : call.outputs.front().memory();
}
inline Memory memory_of(const ReduceCall& call) {
  return call.states.empty() ? call.execution.memory : call.states.front().residual_in.memory();
}

/// Checks for kernels of this memory in this build, and for a device if needed.
void check_memory(const Codec& codec, Memory memory);

/// Checks the memory of all data of a call: lists of values and, on a device, all other pointers.
/// Written memory may overlap a state's own `in`, but no other memory of the call.
/// Run these checks last.
void check_one_memory(const Codec& codec, const EncodeCall& call, ByteSpan frame);
void check_one_memory(const Codec& codec, const DecodeCall& call);
void check_one_memory(const Codec& codec, const ReduceCall& call, ByteSpan frame);
void check_one_memory(const Codec& codec, Memory memory, ConstValueSpan raw_values);

/// Checks for a gradient per segment, all of the same dtype. Returns the dtype, or f32 for an empty
/// list.
Dtype check_values(const Codec& codec, std::span<const Segment> segments,
                   std::span<const ConstValueSpan> gradients);

/// Checks for an output per segment, or a window of the only segment if the codec supports windows.
Dtype check_outputs(const Codec& codec, const DecodeCall& call);

/// Checks for a state per segment if the codec has feedback, otherwise for none.
void check_states(const Codec& codec, const EncodeCall& call);

/// The states of `reduce` are optional, because an owner may have no residual.
void check_states(const Codec& codec, const ReduceCall& call);

/// Checks the size and alignment of the workspace and the round state.
void check_execution(const Codec& codec, const PlanSizes& sizes, const Execution& execution);

/// Checks the size and alignment of an output frame.
void check_frame_space(const Codec& codec, const PlanSizes& sizes, ByteSpan frame);

/// Checks for one or more input frames and their alignment. Does not read the frames.
void check_frame_list(const Codec& codec, std::span<const ConstByteSpan> frames);

/// Checks memories for all segments or for none, with the codec's counts.
void check_memories(const Codec& codec, std::span<const Segment> segments,
                    std::span<const SegmentMemory> memories);

/// Throws "codec NAME: what".
[[noreturn]] void fail(const Codec& codec, const std::string& what);

/// throw_unsupported: throws "codec NAME what" for an unsupported call. throw_no_frames: throws for
/// a call with frames if the codec sends only raw values.
[[noreturn]] void throw_unsupported(const Codec& codec, const char* what);
[[noreturn]] void throw_no_frames(const Codec& codec);

/// Checks for codecs that send only raw values: a factor above 0, no window, and a round from
/// `first` to `last`.
void check_native_factor(const Codec& codec, float factor);
void check_no_window(const Codec& codec, const DecodeCall& call);
void check_round(const Codec& codec, const FrameIdentity& identity, unsigned first, unsigned last);

/// Checks the raw values of a native round.
void check_native(const Codec& codec, ConstValueSpan values, Dtype dtype, std::size_t count);

}  // namespace tersor::encoding
