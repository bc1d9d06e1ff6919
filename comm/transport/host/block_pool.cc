// Implements block_pool.h.
#include "comm/transport/host/block_pool.h"

#include <algorithm>
#include <bit>

namespace tersor::host {
namespace {

constexpr std::size_t kSmallestBlock = 512;  // bytes

unsigned class_of(std::size_t bytes) {
  return static_cast<unsigned>(std::bit_width(std::max(bytes, kSmallestBlock) - 1));
}

}  // namespace

struct Block::Slab {
  Buffer memory;
  BlockPool* pool;
  unsigned size_class;
  std::atomic<std::uint32_t> references{0};
  Slab* next = nullptr;  // in the list of free ones
};

Block::Block(const Block& other) : slab_(other.slab_), bytes_(other.bytes_) {
  if (slab_ != nullptr) slab_->references.fetch_add(1, std::memory_order_relaxed);
}

Block::~Block() {
  if (slab_ == nullptr) return;
  if (slab_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) slab_->pool->give_back(slab_);
}

Block Block::part(std::size_t first, std::size_t count) const {
  Block block = *this;
  block.bytes_ = bytes_.subspan(first, count);
  return block;
}

BlockPool::BlockPool() = default;
BlockPool::~BlockPool() = default;

Block BlockPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  const unsigned size_class = class_of(bytes);
  Block::Slab* slab = reuse(size_class);
  if (slab == nullptr) slab = make(size_class);
  slab->references.store(1, std::memory_order_relaxed);
  return Block(slab, slab->memory.span().first(bytes));
}

Block::Slab* BlockPool::reuse(unsigned size_class) {
  const std::lock_guard lock(mutex_);
  Block::Slab* slab = free_[size_class];
  if (slab != nullptr) free_[size_class] = slab->next;
  return slab;
}

Block::Slab* BlockPool::make(unsigned size_class) {
  std::unique_ptr<Block::Slab> slab(
      new Block::Slab{Buffer(std::size_t{1} << size_class), this, size_class});
  const std::lock_guard lock(mutex_);
  slabs_.push_back(std::move(slab));
  return slabs_.back().get();
}

void BlockPool::give_back(Block::Slab* slab) {
  const std::lock_guard lock(mutex_);
  slab->next = free_[slab->size_class];
  free_[slab->size_class] = slab;
}

}  // namespace tersor::host
