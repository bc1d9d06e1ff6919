// Launches blocktopk's kernels on a device: selects kernels by the types and list lengths of a
// call. A call with up to 500 segments is one launch. Checksums need further launches. Input frames
// are summed before the reading kernel, and a new frame is summed after the writing kernel.

#include "kernels/blocktopk/body.cuh"
#include "kernels/blocktopk/device.h"
#include "kernels/device/device_call.cuh"

#include <tersor/align.h>
#include <tersor/error.h>

#include <cstdint>
#include <span>
#include <string>

namespace tersor::kernels {
namespace {

auto sizes_of(const BlocktopkBlock& block) {
  return [=](const Segment& segment) -> SegmentSizes {
    const BlocktopkLayout layout{segment.count, block};
    return {layout.bytes(), layout.blocks()};
  };
}

/// Checks segment sizes, because a kernel counts the words of a segment's sections in 32 bits.
void check_sizes(std::span<const Segment> segments, const BlocktopkBlock& block) {
  for (const Segment& segment : segments) {
    const std::size_t bytes = BlocktopkLayout{segment.count, block}.bytes();
    if (bytes / sizeof(std::uint32_t) > UINT32_MAX)
      throw InvalidArgumentError(
          "blocktopk: on a device a segment's payload is at most 16 GiB, not " +
          std::to_string(bytes) + " bytes; divide the gradient");
  }
}

/// Queues the launches of a call that writes a frame.
template <class Kernel, class Call, class EntryOf>
void launch_blocks(Queue& queue, Kernel& kernel, const Call& call, const BlocktopkBlock& block,
                   const DeviceFrame& frame, const EntryOf& entry_of) {
  kernel.target = {.payload = frame.frame + sizeof(FrameHeader),
                   .overflows = overflows_of(call),
                   .shape = BlocktopkShape::of(block)};
  kernel.words = words_of_call(call);
  prepare_next_words(queue, call);
  for_each_table(kernel.table, call.segments, sizes_of(block), entry_of,
                 [&](LaunchPosition position) {
                   kernel.seal = seal_of(frame, position);
                   kernel.seal.clears_sums = true;
                   kernel.next = position.is_last ? next_words_of_call(call) : NextWords{};
                   queue.launch_tasks(kernel, kernel.table.units, 1);
                 });
  add_checksum(queue, frame);
}

}  // namespace

void blocktopk_device_encode(const EncodeCall& call, const BlocktopkBlock& block,
                             const DeviceFrame& frame) {
  check_sizes(call.segments, block);
  Queue queue(call.execution.stream);
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    visit_lengths(call.segments.size(), 0, [&](auto segments, auto) {
      BlocktopkEncodeKernel<G, E, segments()> kernel;
      launch_blocks(queue, kernel, call, block, frame,
                    [&](std::size_t i, std::uint64_t offset) { return entry_of(call, i, offset); });
    });
  });
}

void blocktopk_device_decode(const DecodeCall& call, const BlocktopkBlock& block,
                             const FrameHeader& expected) {
  check_sizes(call.segments, block);
  Queue queue(call.execution.stream);
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      BlocktopkDecodeKernel<T, segments(), frames()> kernel;
      kernel.list =
          list_frames<frames()>(queue, call.frames, expected, call.execution, Launches::kSeveral);
      kernel.shape = BlocktopkShape::of(block);
      kernel.factor = call.factor;
      kernel.mode = call.mode;
      const auto numbered_entry = [&](std::size_t i, std::uint64_t offset) {
        DecodeEntry entry = entry_of(call, i, offset);
        entry.parameter = static_cast<std::uint32_t>(i);
        return entry;
      };
      for_each_table(kernel.table, call.segments, sizes_of(block), numbered_entry,
                     [&](LaunchPosition) { queue.launch_tasks(kernel, kernel.table.units, 1); });
    });
  });
}

void blocktopk_device_reduce(const ReduceCall& call, const BlocktopkBlock& block,
                             const DeviceFrame& frame) {
  check_sizes(call.segments, block);
  Queue queue(call.execution.stream);
  visit_residual_type(call.states, [&]<typename E>(E) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      BlocktopkReduceKernel<E, segments(), frames()> kernel;
      kernel.list = list_frames<frames()>(queue, call.frames, frame.header, call.execution,
                                          Launches::kSeveral);
      kernel.factor = call.factor;
      launch_blocks(queue, kernel, call, block, frame, [&](std::size_t i, std::uint64_t offset) {
        ReduceEntry entry = entry_of(call, i, offset);
        entry.parameter = static_cast<std::uint32_t>(i);
        return entry;
      });
    });
  });
}

}  // namespace tersor::kernels
