// What the public functions of a codec check once, so that nothing below has to: parallel lists,
// counts, dtypes, memory, pointers, states, room. All throw InvalidArgument (CudaError for device
// memory) that names the value, the limit and what to do. Nothing is allocated where all is well.
#pragma once

#include <tersor/codec.h>

#include <cstddef>
#include <span>
#include <string>

namespace tersor::encoding {

/// Memory that this build, and for a device this machine, has kernels for.
void check_memory(const Codec& codec, Memory memory);

/// All of a call lies in one memory: its lists of values, and on a device whatever else it points
/// to. Run after the other checks.
void check_one_memory(const Codec& codec, const EncodeCall& call, ConstByteSpan frame);
void check_one_memory(const Codec& codec, const DecodeCall& call);
void check_one_memory(const Codec& codec, const ReduceCall& call, ConstByteSpan frame);
void check_one_memory(const Codec& codec, Memory memory, ConstValueSpan bare_values);

/// One gradient a segment, all of one dtype, which is returned; f32 where there is none.
Dtype check_values(const Codec& codec, std::span<const Segment> segments,
                   std::span<const ConstValueSpan> gradients);

/// One output a segment, or one window of the only segment, where the codec reads windows.
Dtype check_outputs(const Codec& codec, const DecodeCall& call);

/// States are there exactly where the codec has feedback, one a segment.
void check_states(const Codec& codec, const EncodeCall& call);

/// Owners may go without.
void check_states(const Codec& codec, const ReduceCall& call);

/// Room and alignment of workspace and kept memory.
void check_execution(const Codec& codec, const PlanSizes& sizes, const Execution& execution);

/// Room and alignment of a frame to be written.
void check_frame_room(const Codec& codec, const PlanSizes& sizes, ByteSpan frame);

/// Frames to be read: at least one, aligned. Their bytes are not looked at.
void check_frame_list(const Codec& codec, std::span<const ConstByteSpan> frames);

/// Memories are there for all segments or for none, of the codec's counts.
void check_memories(const Codec& codec, std::span<const Segment> segments,
                    std::span<const SegmentMemory> memories);

/// "codec NAME: what".
[[noreturn]] void fail(const Codec& codec, const std::string& what);

/// A call of what a codec has not: "codec NAME what"; the second of frames, where a codec sends
/// bare values alone.
[[noreturn]] void throw_unable(const Codec& codec, const char* what);
[[noreturn]] void throw_frameless(const Codec& codec);

/// The calls of a codec that sends bare values alone: its factor is above 0, it decodes whole
/// segments, and a call is one of the rounds `first` to `last`.
void check_native_factor(const Codec& codec, float factor);
void check_no_window(const Codec& codec, const DecodeCall& call);
void check_round(const Codec& codec, const FrameIdentity& identity, unsigned first, unsigned last);

/// The bare values of a native round.
void check_native(const Codec& codec, ConstValueSpan values, Dtype dtype, std::size_t count);

}  // namespace tersor::encoding
