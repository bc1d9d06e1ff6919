// Device memory that received bytes lie in: blocks that are lent again and again, so that a running
// exchange allocates nothing.
#pragma once

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/device/event.h"

namespace tersor::nccl {

/// A block is lent to one operation at a time, and after that to whatever comes later on its
/// stream; to one on another stream only behind an event.
struct DeviceBlock {
  Buffer memory;
  std::uint64_t capture = 0;  ///< of a graph, whose replays write here for ever; 0: of none
  StreamView stream;          ///< that it was last read on
  kernels::Event read;        ///< stands for that
  bool free = false;
};

/// Of one queue; one thread at a time, but for `spoil`. Grows with what is under way and keeps it.
class DeviceBlocks {
 public:
  /// A block of at least `bytes` bytes for work on the stream. Throws InvalidArgument where the
  /// stream is captured and no block is free: nothing can be allocated then.
  DeviceBlock& take(std::size_t bytes, StreamView stream);
  /// What is queued on the block's stream so far is the last to read it.
  void give_back(DeviceBlock& block);
  /// Queues that no block holds anything that was received.
  void spoil(StreamView stream);

 private:
  DeviceBlock& add(std::size_t bytes, std::uint64_t capture, StreamView stream);

  std::mutex mutex_;  // where blocks are added, and seen by `spoil`
  std::vector<std::unique_ptr<DeviceBlock>> blocks_;
};

}  // namespace tersor::nccl
