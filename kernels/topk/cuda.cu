// Top-k on a device: seven stream operations per segment (eight with int8 values). Kernels without
// work exit at once. All decisions are made on the device.
//
//   clear   Zeroes the state shared by the launches (no kernel).
//   sample  Finds a threshold almost surely a little below the k-th key.
//   scan    Makes the single pass (residual, candidates, window) and chooses the path.
//   narrow  Runs three times: builds a better candidate list, or finds a digit of the k-th key.
//   emit    Finds the payload offset of each part of the segment, and writes values, indices,
//           remainders and the frame's header.
//   settle  Writes scales, codes and remainders; int8 only.
//
// If frames have a checksum, one more launch ends the call.

#include "kernels/device/device_call.cuh"
#include "kernels/topk/body_decode.cuh"
#include "kernels/topk/body_emit.cuh"
#include "kernels/topk/body_narrow.cuh"
#include "kernels/topk/body_sample.cuh"
#include "kernels/topk/body_scan.cuh"
#include "kernels/topk/body_settle.cuh"
#include "kernels/topk/device.h"

#include <tersor/align.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor::kernels {
namespace {

TopkLayout layout_of(std::size_t count, const TopkOptions& options) {
  return {count, topk_selected(count, options.density), options.values};
}

/// What the launches of the last segment write in addition.
struct TopkFinalWrites {
  FrameSeal seal;
  NextWords next;
};

template <typename G, typename E>
void launch_select(Queue& queue, const TopkTask<G, E>& task, TopkForce force) {
  const auto* end = reinterpret_cast<std::byte*>(task.memory.runs);  // of control and counts
  queue.zero(task.memory.control,
             static_cast<std::size_t>(end - reinterpret_cast<std::byte*>(task.memory.control)));
  const TopkSampleKernel<G, E> sample{{}, task};
  queue.launch_tasks(sample, task.plan.samples, sample.kThreads * sample.kRow);
  queue.launch_tasks(TopkScanKernel<G, E>{{}, task, force}, task.plan.parts, 1);
  queue.launch_tasks(TopkNarrowKernel<G, E, 0>{{}, task}, task.plan.parts, 1);
  queue.launch_tasks(TopkNarrowKernel<G, E, 1>{{}, task}, task.plan.parts, 1);
  queue.launch_tasks(TopkNarrowKernel<G, E, 2>{{}, task}, task.plan.parts, 1);
}

template <typename G, typename E>
void launch_send(Queue& queue, const TopkTask<G, E>& task, const TopkTarget& target,
                 const TopkFinalWrites& final_writes) {
  using Emit = TopkEmitKernel<G, E>;
  const std::size_t parts = task.plan.parts;
  const unsigned blocks = static_cast<unsigned>(
      std::min<std::size_t>(queue.blocks_for<Emit>(parts, 4), kTopkMaxBlocks));
  queue.launch(
      Emit{{}, task, target, ceil_div(parts, blocks), final_writes.seal, final_writes.next},
      blocks);
  if (target.layout.values != TopkValues::kInt8) return;
  const TopkSettleKernel<E> settle{
      {}, task.memory.control, task.memory.chosen, task.tensor.residual_out, target};
  queue.launch_tasks(settle, target.layout.blocks(), settle.kThreads / kWarpThreads);
}

template <typename G, typename E>
TopkTensor<G, E> tensor_of(const EncodeCall& call, std::size_t index, const TopkOptions& options) {
  const EncodeEntry entry = entry_of(call, index, 0);
  const Dtype values = options.values == TopkValues::kBf16 ? Dtype::kBf16 : Dtype::kF32;
  const Dtype residual = std::is_same_v<E, Bf16> ? Dtype::kBf16 : Dtype::kF32;
  return {.gradient = static_cast<const G*>(entry.gradient),
          .residual_in = static_cast<const E*>(entry.residual_in),
          .residual_out = static_cast<E*>(entry.residual_out),
          .active = entry.active,
          .words = words_of_call(call),
          .count = entry.count,
          .limit = topk_limit(values, residual)};
}

/// Returns the end of the segments that have values to send: all later segments are empty.
std::size_t end_of_nonempty(std::span<const Segment> segments) {
  std::size_t end = segments.size();
  while (end != 0 && segments[end - 1].count == 0) --end;
  return end;
}

template <typename G, typename E>
void encode_segments(Queue& queue, const EncodeCall& call, const TopkOptions& options,
                     const DeviceFrame& frame, TopkForce force) {
  const std::size_t last = end_of_nonempty(call.segments);
  TopkFinalWrites final_writes{seal_of(frame, {.is_first = true, .is_last = false}),
                               next_words_of_call(call)};
  final_writes.seal.clears_sums = true;
  std::byte* payload = frame.frame + sizeof(FrameHeader);
  for (std::size_t i = 0; i < call.segments.size(); ++i) {
    const TopkTarget target{payload, layout_of(call.segments[i].count, options)};
    payload += target.layout.bytes();
    if (target.layout.count == 0) {
      queue.zero(target.payload, target.layout.bytes());
      continue;
    }
    TopkTask<G, E> task;
    task.tensor = tensor_of<G, E>(call, i, options);
    task.plan = topk_device_plan(target.layout.count, target.layout.selected, force);
    std::size_t bytes;
    task.memory = topk_device_memory(task.plan, call.execution.workspace.data(), bytes);
    launch_select(queue, task, force);
    launch_send(queue, task, target, i + 1 == last ? final_writes : TopkFinalWrites{});
  }
  if (last == 0) advance_words(queue, final_writes.next, final_writes.seal);
}

/// The part of a segment requested by a call.
TopkDecodeEntry decode_entry_of(const DecodeCall& call, std::size_t index, std::uint64_t offset,
                                const TopkOptions& options) {
  const std::size_t count = call.segments[index].count;
  const std::uint64_t begin = call.window_first.value_or(0);
  return {.output = call.outputs[index].pointer(),
          .count = count,
          .begin = begin,
          .end = begin + call.outputs[index].count(),
          .offset = offset,
          .selected = static_cast<std::uint32_t>(topk_selected(count, options.density)),
          .first_unit = 0,
          .segment = static_cast<std::uint32_t>(index),
          .reserved = 0};
}

std::size_t units_of(const TopkDecodeEntry& entry) {
  if (entry.begin == entry.end) return 0;
  return ceil_div(entry.end, kTopkDecodeUnit) - entry.begin / kTopkDecodeUnit;
}

template <class Kernel>
void decode_segments(Queue& queue, Kernel& kernel, const DecodeCall& call,
                     const TopkOptions& options) {
  kernel.values = options.values;
  kernel.factor = call.factor;
  kernel.mode = call.mode;
  const auto entry_of = [&](std::size_t i, std::uint64_t offset) {
    return decode_entry_of(call, i, offset, options);
  };
  const auto sizes_of = [&](const Segment& segment) -> SegmentSizes {
    const auto index = static_cast<std::size_t>(&segment - call.segments.data());
    return {layout_of(segment.count, options).bytes(), units_of(entry_of(index, 0))};
  };
  for_each_table(kernel.table, call.segments, sizes_of, entry_of,
                 [&](LaunchPosition) { queue.launch_tasks(kernel, kernel.table.units, 1); });
}

}  // namespace

std::size_t topk_device_workspace_bytes(std::size_t count, double density) {
  if (count == 0) return 0;
  std::size_t bytes;
  topk_device_memory(topk_device_plan(count, topk_selected(count, density)), nullptr, bytes);
  return bytes;
}

void topk_device_encode(const EncodeCall& call, const TopkOptions& options,
                        const DeviceFrame& frame, TopkForce force) {
  Queue queue(call.execution.stream);
  prepare_next_words(queue, call);
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    encode_segments<G, E>(queue, call, options, frame, force);
  });
  add_checksum(queue, frame);
}

void topk_device_decode(const DecodeCall& call, const TopkOptions& options,
                        const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      TopkDecodeKernel<T, segments(), frames()> kernel;
      kernel.list =
          list_frames<frames()>(queue, call.frames, expected, call.execution, Launches::kSeveral);
      decode_segments(queue, kernel, call, options);
    });
  });
}

}  // namespace tersor::kernels
