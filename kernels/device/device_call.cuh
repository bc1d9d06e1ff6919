// Host code shared by the launchers of all codecs: divides lists of segments into tables, prepares
// headers, state words and checksums, and visits types.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/device_frame.h"
#include "kernels/device/queue.cuh"
#include "kernels/host/checksum.h"

#include <tersor/align.h>
#include <tersor/codec.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tersor::kernels {

/// Calls the visitor with the type of a call's residuals.
template <typename Visitor>
void visit_residual_type(std::span<const SegmentState> states, Visitor&& visitor) {
  if (states.empty()) return visitor(NoResidual{});
  if (states.front().residual_in.dtype() == Dtype::kF32) return visitor(float{});
  return visitor(Bf16{});
}

/// Returns the dtype of a validated list, or f32 for an empty list.
template <typename Span>
Dtype dtype_of(std::span<Span> values) {
  return values.empty() ? Dtype::kF32 : values.front().dtype();
}

/// Calls visitor(G{}, E{}) with the types of gradient and residual.
template <typename Visitor>
void visit_sent(const EncodeCall& call, Visitor&& visitor) {
  visit_gradient_dtype(dtype_of(call.gradients), [&]<typename G>(G) {
    visit_residual_type(call.states, [&]<typename E>(E) { visitor(G{}, E{}); });
  });
}

template <auto kValue>
using Constant = std::integral_constant<decltype(kValue), kValue>;

/// The list lengths for which a kernel is compiled. Long lists usually hold many small tensors that
/// are sent uncompressed or rounded to nearest. Rarer codec options process long lists in several
/// launches.
enum class ListLengths : std::uint8_t { kShortAndLong, kShort };
#ifdef TERSOR_FEWER_KERNELS
constexpr bool kFewerKernels = true;  // kernels for long lists also serve short lists
#else
constexpr bool kFewerKernels = false;
#endif
template <ListLengths kLengths = ListLengths::kShortAndLong, typename Visitor>
void visit_lengths(std::size_t segments, std::size_t frames, Visitor&& visitor) {
  constexpr bool kHasLong = kLengths == ListLengths::kShortAndLong;
  if constexpr (kHasLong) {
    if (kFewerKernels || segments > kShortListSegments || frames > kShortListFrames)
      return visitor(Constant<kMaxSegments>{}, Constant<kMaxFrames>{});
  }
  if constexpr (!kHasLong || !kFewerKernels)
    visitor(Constant<kShortListSegments>{}, Constant<kShortListFrames>{});
}

/// Calls visitor(mode, segments, frames). Collectives never add. Therefore kAdd has only one
/// kernel, for lists of all lengths.
template <typename Visitor>
void visit_decode(const DecodeCall& call, Visitor&& visitor) {
  if (call.mode == DecodeMode::kAdd)
    return visitor(Constant<DecodeMode::kAdd>{}, Constant<kShortListSegments>{},
                   Constant<kMaxFrames>{});
  visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
    visitor(Constant<DecodeMode::kAssign>{}, segments, frames);
  });
}

/// The position of a launch within its call.
struct LaunchPosition {
  bool is_first, is_last;
};

/// Fills `table` from a list of segments and calls launch(position) whenever the table is full, and
/// once at the end. The callback entry_of(i, offset) returns the entry of segment i with sections
/// at `offset`. The callback sizes_of(segment) returns a SegmentSizes, or another type with a
/// summable `bytes` member. Segments without values have no entry.
struct SegmentSizes {
  std::size_t bytes;  // of the segment's sections
  std::size_t units;
};
template <class Table, class SizesOf, class EntryOf, class Launch>
void for_each_table(Table& table, std::span<const Segment> segments, const SizesOf& sizes_of,
                    const EntryOf& entry_of, const Launch& launch) {
  table.clear();
  bool is_first = true;
  decltype(sizes_of(Segment{}).bytes) offset = {};
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto sizes = sizes_of(segments[i]);
    if (sizes.units != 0 && !table.add(entry_of(i, offset), sizes.units)) {
      table.set_hints();
      launch(LaunchPosition{is_first, false});
      is_first = false;
      table.clear();
      table.add(entry_of(i, offset), sizes.units);
    }
    offset += sizes.bytes;
  }
  table.set_hints();
  launch(LaunchPosition{is_first, true});
}

/// kOne: the call is a single launch, and its kernel sums the frames while reading.
enum class Launches : std::uint8_t { kOne, kSeveral };
template <class Table>
Launches launches_of(const Table&, std::span<const Segment> segments) {
  return segments.size() <= Table::kEntries ? Launches::kOne : Launches::kSeveral;
}

/// Returns the number of consecutive units per warp. The number is 1 unless the kernel computes a
/// checksum of the written frame. Then two limits apply: the units worth summing at once
/// (Kernel::kRun) and the cache, shared with the frames read. All warps get about the same number.
template <class Kernel>
std::uint32_t run_of(const Queue& queue, const Kernel& kernel) {
  if constexpr (requires { kernel.seal; }) {
    if (!kernel.seal.has_checksum()) return 1;
    constexpr unsigned kWarps = Kernel::kThreads / kWarpThreads;
    std::size_t longest = Kernel::kRun;
    if constexpr (requires { kernel.list; })
      longest = std::max<std::size_t>(2, longest / kernel.list.frames);
    const std::size_t units = std::max<std::size_t>(kernel.table.units, 1);
    const std::size_t warps = std::size_t{queue.blocks_for<Kernel>(units, kWarps)} * kWarps;
    const std::size_t units_per_warp = ceil_div(units, warps);
    return static_cast<std::uint32_t>(ceil_div(units_per_warp, ceil_div(units_per_warp, longest)));
  }
  return 1;
}

/// True if the launch sums a checksum of the written frame or of the frames read.
template <class Kernel>
bool sums_frames(const Kernel& kernel) {
  if constexpr (requires { kernel.list; })
    if (kernel.list.sums != nullptr && !kernel.list.are_summed) return true;
  if constexpr (requires { kernel.seal; }) return kernel.seal.has_checksum();
  return false;
}

/// Launches a kernel whose blocks process ranges of tiles. The device starts a block when another
/// one ends. A range of several rounds ends fewer sums and finds fewer segments.
template <class Kernel>
void launch_ranges(Queue& queue, Kernel& kernel) {
  constexpr unsigned kWarps = Kernel::kThreads / kWarpThreads;
  const bool is_long = kernel.table.entries > 1 || sums_frames(kernel);
  const std::size_t longest = is_long ? Kernel::kRounds : 1;
  const std::size_t rounds = std::max<std::size_t>(ceil_div(kernel.table.units, kWarps), 1);
  const std::size_t run = std::min(ceil_div(rounds, queue.resident<Kernel>()), longest);
  kernel.table.run = static_cast<std::uint32_t>(run);
  if constexpr (requires { kernel.list; }) kernel.list.distribute(rounds);
  queue.launch(kernel, static_cast<unsigned>(ceil_div(rounds, run)));
}

/// Launches the kernel over all units of the kernel's table.
template <class Kernel>
void launch_units(Queue& queue, Kernel& kernel) {
  if constexpr (requires { requires Kernel::Order::kRanges; }) return launch_ranges(queue, kernel);
  constexpr unsigned kWarps = Kernel::kThreads / kWarpThreads;
  kernel.table.run = run_of(queue, kernel);
  const std::size_t runs = ceil_div(kernel.table.units, kernel.table.run);
  if constexpr (requires { kernel.list; }) kernel.list.distribute(ceil_div(runs, kWarps));
  queue.launch_tasks(kernel, runs, kWarps);
}

/// Returns the header's part of its frame's checksum.
inline std::uint64_t header_part(FrameHeader header) {
  header.checksum = 0;
  return checksum(&header, sizeof header / sizeof(std::uint32_t), 0);
}

/// Returns the seal of a frame for the launch in `position`.
inline FrameSeal seal_of(const DeviceFrame& frame, LaunchPosition position) {
  FrameSeal seal{frame.frame, frame.header, position.is_first, position.is_last};
  seal.header.checksum = seal.has_checksum() ? header_part(frame.header) : 0;
  return seal;
}

/// Zeroes the sums of a frame before the first launch that writes the frame.
inline void prepare_seal(Queue& queue, const DeviceFrame& frame) {
  if ((frame.header.flags & kFrameHasChecksum) != 0)
    queue.zero(FrameSeal::sums_of(frame.frame), FrameSeal::kSumsBytes);
}

/// Sums the payloads of frames of `frame_bytes` bytes in a separate launch. `sums` must be zeros.
void sum_frames(Queue& queue, std::span<const ConstByteSpan> frames, std::size_t frame_bytes,
                ChecksumParts* sums);

/// Completes the header of a frame with a checksum, after launches without their own sums.
void add_checksum(Queue& queue, const DeviceFrame& frame);

/// Lists the frames of a call. If the frames have checksums, `workspace` holds the sums of an
/// earlier launch, or zeros if the kernel itself sums the frames.
template <unsigned kCapacity>
FrameList<kCapacity> list_frames(Queue& queue, std::span<const ConstByteSpan> frames,
                                 const FrameHeader& expected, const Execution& execution,
                                 Launches launches) {
  FrameList<kCapacity> list;
  list.expected = expected;
  list.fault = execution.fault;
  list.frames = static_cast<std::uint32_t>(frames.size());
  for (std::size_t i = 0; i < frames.size(); ++i) list.frame[i] = frames[i].data();
  if ((expected.flags & kFrameHasChecksum) == 0) return list;
  list.header_part = header_part(expected);
  list.sums = reinterpret_cast<ChecksumParts*>(execution.workspace.data());
  queue.zero(list.sums, device_frames_bytes(frames.size()));
  if (launches == Launches::kOne) return list;
  list.are_summed = true;
  sum_frames(queue, frames, list.frame_bytes(), list.sums);
  return list;
}

/// Returns the state words of an EncodeCall or ReduceCall.
template <typename Call>
CallWords words_of_call(const Call& call) {
  return {call.words, call.random.step};
}
template <typename Call>
NextWords next_words_of_call(const Call& call) {
  return {call.words, call.words_out, call.random.step};
}

/// Prepares a call's first launch: zeroes the overflow counter of words_out if words_out differs
/// from the words read.
template <typename Call>
void prepare_next_words(Queue& queue, const Call& call) {
  if (call.words_out != nullptr && call.words_out != call.words)
    queue.zero(&call.words_out->overflows, sizeof call.words_out->overflows);
}

/// Writes the next step's words, and the header of a frame that no other launch writes, in a
/// separate launch.
void advance_words(Queue& queue, const NextWords& next, const FrameSeal& seal = {});

/// Return a table entry whose first_unit is not yet set.
inline EncodeEntry entry_of(const EncodeCall& call, std::size_t i, std::uint64_t offset) {
  const Segment& segment = call.segments[i];
  const SegmentState state = call.states.empty() ? SegmentState{} : call.states[i];
  return {.gradient = call.gradients[i].pointer(),
          .residual_in = state.residual_in.pointer(),
          .residual_out = state.residual_out.pointer(),
          .active = segment.active,
          .count = segment.count,
          .first_index = segment.first_index,
          .offset = offset,
          .parameter = segment.parameter,
          .first_unit = 0};
}
inline ReduceEntry entry_of(const ReduceCall& call, std::size_t i, std::uint64_t offset) {
  const Segment& segment = call.segments[i];
  const SegmentState state = call.states.empty() ? SegmentState{} : call.states[i];
  return {.residual_in = state.residual_in.pointer(),
          .residual_out = state.residual_out.pointer(),
          .count = segment.count,
          .first_index = segment.first_index,
          .offset = offset,
          .parameter = segment.parameter,
          .first_unit = 0};
}
inline DecodeEntry entry_of(const DecodeCall& call, std::size_t i, std::uint64_t offset) {
  return {.output = call.outputs[i].pointer(),
          .count = call.segments[i].count,
          .offset = offset,
          .parameter = call.segments[i].parameter,
          .first_unit = 0};
}

/// Returns the counter of finite values that overflowed.
template <class Call>
std::uint64_t* overflows_of(const Call& call) {
  return call.words_out == nullptr ? call.execution.overflows : &call.words_out->overflows;
}

/// When the next step's words are written: by the last launch, or by a separate launch afterwards
/// if kernels read the step.
enum class Advance : std::uint8_t { kInLastLaunch, kSeparateLaunch };

/// Queues the launches of an EncodeCall or ReduceCall. The call writes a frame or, if `frame` is
/// null, raw values. entry_of(call, i, offset) returns the table entries.
template <Advance kAdvance, class Kernel, class Call, class SizesOf>
void launch_writer(Queue& queue, Kernel& kernel, const Call& call, const DeviceFrame* frame,
                   const SizesOf& sizes_of) {
  if constexpr (requires { kernel.words; }) kernel.words = words_of_call(call);
  prepare_next_words(queue, call);
  if (frame != nullptr) prepare_seal(queue, *frame);
  const auto entry = [&](std::size_t i, const auto& offset) { return entry_of(call, i, offset); };
  for_each_table(kernel.table, call.segments, sizes_of, entry, [&](LaunchPosition position) {
    if constexpr (requires { kernel.seal; })
      kernel.seal = frame == nullptr ? FrameSeal{} : seal_of(*frame, position);
    if constexpr (requires { kernel.next; })
      kernel.next = kAdvance == Advance::kInLastLaunch && position.is_last
                        ? next_words_of_call(call)
                        : NextWords{};
    launch_units(queue, kernel);
  });
  if constexpr (kAdvance == Advance::kSeparateLaunch)
    if (call.words_out != nullptr) advance_words(queue, next_words_of_call(call));
}

/// Queues the launches of a call that decodes.
template <class Kernel, class SizesOf>
void launch_reader(Queue& queue, Kernel& kernel, const DecodeCall& call, const SizesOf& sizes_of) {
  kernel.factor = call.factor;
  const auto entry = [&](std::size_t i, const auto& offset) { return entry_of(call, i, offset); };
  for_each_table(kernel.table, call.segments, sizes_of, entry,
                 [&](LaunchPosition) { launch_units(queue, kernel); });
}

}  // namespace tersor::kernels
