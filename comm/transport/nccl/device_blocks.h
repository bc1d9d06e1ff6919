// Device memory for received bytes. Blocks are reused, so a running exchange allocates nothing.
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

/// A block is lent to a single operation at a time. After a return, later operations on the same
/// stream may use the block at once; operations on other streams wait for an event.
struct DeviceBlock {
  Buffer memory;
  std::uint64_t capture = 0;  ///< id of the graph whose replays write to the block, or 0
  StreamView stream;          ///< last stream that read the block
  kernels::Event read;        ///< recorded after the last read
  bool free = false;
};

/// The blocks of a queue. Single-threaded except for `invalidate`. Grows with the memory in use and
/// never shrinks.
class DeviceBlocks {
 public:
  /// Returns a block of at least `bytes` bytes for work on the stream. Throws InvalidArgumentError
  /// if the stream is under capture and no block is free, because allocation is then impossible.
  DeviceBlock& take(std::size_t bytes, StreamView stream);
  /// Returns a block. The work queued so far on the block's stream is the last reader.
  void return_block(DeviceBlock& block);
  /// Queues overwriting all received data in all blocks.
  void invalidate(StreamView stream);

 private:
  DeviceBlock& add(std::size_t bytes, std::uint64_t capture, StreamView stream);

  std::mutex mutex_;  // protects `blocks_` against `invalidate`
  std::vector<std::unique_ptr<DeviceBlock>> blocks_;
};

}  // namespace tersor::nccl
