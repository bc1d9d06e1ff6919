// The owner of raw memory for workspaces, residuals and messages.
#pragma once

#include <tersor/span.h>

#include <cstddef>
#include <utility>

namespace tersor {

/// Uninitialised bytes on the host (64-byte aligned) or on the current device. Move only.
class Buffer {
 public:
  Buffer() = default;
  /// Throws OutOfMemoryError if the allocation fails, and CudaError for device memory in a build
  /// without CUDA.
  explicit Buffer(std::size_t bytes, Memory memory = Memory::kHost);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }

  /// Returns the first byte; null if the buffer is empty.
  std::byte* pointer() const { return pointer_; }
  /// Returns the size in bytes.
  std::size_t bytes() const { return bytes_; }
  /// Returns the kind of memory.
  Memory memory() const { return memory_; }
  /// Returns all bytes.
  ByteSpan span() const { return {pointer_, bytes_}; }
  /// Returns the first `count` values as one dtype. Throws InvalidArgumentError if the values do
  /// not fit.
  ValueSpan values(std::size_t count, Dtype dtype) const;

 private:
  void swap(Buffer& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    std::swap(memory_, other.memory_);
  }

  std::byte* pointer_ = nullptr;
  std::size_t bytes_ = 0;
  Memory memory_ = Memory::kHost;
};

}  // namespace tersor
