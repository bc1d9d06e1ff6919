// Memory of messages: blocks go back to a pool, so that a running exchange allocates nothing.
#pragma once

#include <tersor/network.h>

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tersor::host {

/// Blocks by powers of two, at least 64-byte aligned. Grows with what is under way and keeps it.
/// Outlives its blocks; safe to use from many threads.
class BlockPool {
 public:
  /// Pinned and device memory: of the device that is current now, whichever thread takes a block.
  explicit BlockPool(BlockMemory memory = BlockMemory::kHost);
  ~BlockPool();

  /// A block of `bytes` bytes, not initialised; an empty one for 0. Throws OutOfMemory, CudaError.
  Block take(std::size_t bytes);

 private:
  friend class tersor::Block;
  static constexpr unsigned kClasses = 64;
  void give_back(Block::Slab* slab);
  Block::Slab* reuse(unsigned size_class);
  Block::Slab* make(unsigned size_class);
  void allocate(Block::Slab& slab, std::size_t bytes) const;

  const BlockMemory memory_;
  const int device_;
  std::mutex mutex_;
  std::array<Block::Slab*, kClasses> free_{};
  std::vector<std::unique_ptr<Block::Slab>> slabs_;
};

/// The pools of one world, those of pinned and of device memory made when they are first asked for.
/// Outlives all blocks; safe to use from many threads.
class BlockPools {
 public:
  BlockPool& host() { return host_; }
  /// For the current device.
  BlockPool& pinned() { return of(BlockMemory::kPinned); }
  BlockPool& device() { return of(BlockMemory::kDevice); }

 private:
  BlockPool& of(BlockMemory memory);

  BlockPool host_;
  std::mutex mutex_;
  std::map<std::pair<BlockMemory, int>, BlockPool> others_;  // by the number of the device
};

}  // namespace tersor::host
