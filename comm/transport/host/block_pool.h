// Message memory. Blocks return to a pool, so a running exchange allocates nothing.
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

/// Blocks with power-of-two sizes and at least 64-byte alignment. The pool grows with the memory in
/// use and never shrinks. A pool must outlive its blocks. Thread-safe.
class BlockPool {
 public:
  /// Pinned and device pools use the device current at construction, on any thread.
  explicit BlockPool(BlockMemory memory = BlockMemory::kHost);
  ~BlockPool();

  /// Returns an uninitialized block of `bytes` bytes; for 0 bytes, an empty block. Throws
  /// OutOfMemoryError or CudaError.
  Block take(std::size_t bytes);
  /// Returns a block with a copy of `bytes`.
  Block copy(ConstByteSpan bytes);

 private:
  friend class tersor::Block;
  static constexpr unsigned kClasses = 64;
  void recycle(Block::Slab* slab);
  Block::Slab* reuse(unsigned size_class);
  Block::Slab* make(unsigned size_class);
  void allocate(Block::Slab& slab, std::size_t bytes) const;

  const BlockMemory memory_;
  const int device_;
  std::mutex mutex_;
  std::array<Block::Slab*, kClasses> free_{};
  std::vector<std::unique_ptr<Block::Slab>> slabs_;
};

/// The pools of a progress engine. Pinned and device pools are created on first use. Must outlive
/// all blocks. Thread-safe.
class BlockPools {
 public:
  BlockPool& host() { return host_; }
  /// The pools of the current device.
  BlockPool& pinned() { return of(BlockMemory::kPinned); }
  BlockPool& device() { return of(BlockMemory::kDevice); }

 private:
  BlockPool& of(BlockMemory memory);

  BlockPool host_;
  std::mutex mutex_;
  std::map<std::pair<BlockMemory, int>, BlockPool> others_;  // by device number
};

}  // namespace tersor::host
