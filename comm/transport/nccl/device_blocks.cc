#include "comm/transport/nccl/device_blocks.h"

#include <tersor/error.h>

#include <bit>

#include "kernels/device/device.h"
#include "kernels/device/marks.h"

namespace tersor::nccl {
namespace {

constexpr std::size_t kMinBlockBytes = 4096;

/// Rounds up by at most an eighth. Slightly different lengths therefore share blocks.
std::size_t rounded(std::size_t bytes) {
  if (bytes <= kMinBlockBytes) return kMinBlockBytes;
  const std::size_t step = std::bit_ceil(bytes) / 16;
  return (bytes + step - 1) / step * step;
}

}  // namespace

// A block written by a graph stays with the graph. A block without a graph may join a graph,
// because all previous reads precede the graph's launch or belong to the graph. An equal stream
// handle proves nothing about the order of reads: a later stream may reuse the handle.
DeviceBlock& DeviceBlocks::take(std::size_t bytes, StreamView stream) {
  const std::size_t rounded_bytes = rounded(bytes);
  const std::uint64_t capture = kernels::capture_of(stream);
  for (const auto& block : blocks_) {
    if (!block->free || block->memory.bytes() != rounded_bytes) continue;
    if (block->capture != capture && block->capture != 0) continue;
    if (block->capture == capture) block->read.hold(stream);
    block->free = false;
    block->capture = capture;
    block->stream = stream;
    return *block;
  }
  if (capture != 0)
    throw InvalidArgumentError(
        "a captured call needs a receive buffer of its own, and no buffer is free: "
        "call it once outside of a graph before each capture");
  return add(rounded_bytes, capture, stream);
}

// Allocates without the lock, because allocation may wait for the device.
DeviceBlock& DeviceBlocks::add(std::size_t bytes, std::uint64_t capture, StreamView stream) {
  auto block = std::make_unique<DeviceBlock>(
      DeviceBlock{Buffer(bytes, Memory::kDevice), capture, stream, {}, false});
  const std::lock_guard lock(mutex_);
  return *blocks_.emplace_back(std::move(block));
}

void DeviceBlocks::invalidate(StreamView stream) {
  const std::lock_guard lock(mutex_);
  for (const auto& block : blocks_) kernels::spoil(block->memory.span(), stream);
}

void DeviceBlocks::return_block(DeviceBlock& block) {
  block.read.record(block.stream);
  block.free = true;
}

}  // namespace tersor::nccl
