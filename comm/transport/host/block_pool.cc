#include "comm/transport/host/block_pool.h"

#include <tersor/buffer.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"

namespace tersor {

struct Block::Slab {
  Buffer memory;
  kernels::PinnedBuffer pinned;  // used instead of `memory` for pinned blocks
  host::BlockPool* pool;
  unsigned size_class;
  std::atomic<std::uint32_t> references{0};
  Slab* next = nullptr;  // in the free list
};

Block::Block(const Block& other) : slab_(other.slab_), bytes_(other.bytes_) {
  if (slab_ != nullptr) slab_->references.fetch_add(1, std::memory_order_relaxed);
}

Block::~Block() {
  if (slab_ == nullptr) return;
  if (slab_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) slab_->pool->recycle(slab_);
}

BlockMemory Block::memory() const {
  return slab_ == nullptr ? BlockMemory::kHost : slab_->pool->memory_;
}

Block Block::part(std::size_t first, std::size_t count) const {
  Block block = *this;
  block.bytes_ = bytes_.subspan(first, count);
  return block;
}

namespace host {
namespace {

constexpr std::size_t kMinBlockBytes = 512;  // bytes

unsigned class_of(std::size_t bytes) {
  return static_cast<unsigned>(std::bit_width(std::max(bytes, kMinBlockBytes) - 1));
}

}  // namespace

BlockPool::BlockPool(BlockMemory memory)
    : memory_(memory), device_(memory == BlockMemory::kHost ? 0 : kernels::current_device()) {}

BlockPool::~BlockPool() = default;

Block BlockPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  const unsigned size_class = class_of(bytes);
  Block::Slab* slab = reuse(size_class);
  if (slab == nullptr) slab = make(size_class);
  slab->references.store(1, std::memory_order_relaxed);
  const ByteSpan all = memory_ == BlockMemory::kPinned ? slab->pinned.span() : slab->memory.span();
  return Block(slab, all.first(bytes));
}

Block BlockPool::copy(ConstByteSpan bytes) {
  Block block = take(bytes.size());
  if (!bytes.empty()) std::memcpy(block.writable().data(), bytes.data(), bytes.size());
  return block;
}

Block::Slab* BlockPool::reuse(unsigned size_class) {
  const std::lock_guard lock(mutex_);
  Block::Slab* slab = free_[size_class];
  if (slab != nullptr) free_[size_class] = slab->next;
  return slab;
}

Block::Slab* BlockPool::make(unsigned size_class) {
  std::unique_ptr<Block::Slab> slab(new Block::Slab{.pool = this, .size_class = size_class});
  allocate(*slab, std::size_t{1} << size_class);
  const std::lock_guard lock(mutex_);
  slabs_.push_back(std::move(slab));
  return slabs_.back().get();
}

void BlockPool::allocate(Block::Slab& slab, std::size_t bytes) const {
  if (memory_ == BlockMemory::kHost) {
    slab.memory = Buffer(bytes);
    return;
  }
  const kernels::DeviceScope scope(device_);
  if (memory_ == BlockMemory::kPinned)
    slab.pinned = kernels::PinnedBuffer(bytes);
  else
    slab.memory = Buffer(bytes, Memory::kDevice);
}

void BlockPool::recycle(Block::Slab* slab) {
  const std::lock_guard lock(mutex_);
  slab->next = free_[slab->size_class];
  free_[slab->size_class] = slab;
}

BlockPool& BlockPools::of(BlockMemory memory) {
  const std::lock_guard lock(mutex_);
  return others_.try_emplace({memory, kernels::current_device()}, memory).first->second;
}

}  // namespace host
}  // namespace tersor
