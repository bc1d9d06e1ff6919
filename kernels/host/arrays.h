// Divides memory into arrays.
#pragma once

#include <tersor/align.h>

#include <cstddef>

namespace tersor::kernels {

/// Takes arrays from memory one after another, each at a multiple of `alignment` bytes from the
/// start. If `memory` is null, only the size is computed.
class ArrayAllocator {
 public:
  ArrayAllocator(std::byte* memory, std::size_t alignment)
      : memory_(memory), alignment_(alignment) {}

  template <typename T>
  T* take(std::size_t count) {
    std::byte* const first = memory_ == nullptr ? nullptr : memory_ + bytes_;
    bytes_ += align_up(count * sizeof(T), alignment_);
    return reinterpret_cast<T*>(first);
  }

  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* memory_;
  std::size_t alignment_, bytes_ = 0;
};

}  // namespace tersor::kernels
