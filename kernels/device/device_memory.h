// Device memory, pinned host memory, and queued copies and fills.
#pragma once

#include <tersor/span.h>
#include <tersor/stream.h>

#include <cstddef>
#include <utility>

namespace tersor::kernels {

/// Allocates memory of the current device, aligned to at least 256 bytes. Throws OutOfMemoryError
/// and CudaError.
std::byte* allocate_device(std::size_t bytes);
/// Waits for all work queued on the device, then frees the memory.
void free_device(std::byte* memory) noexcept;

/// Allocates zeroed, page-locked host memory that the device can access at the same address. Pinned
/// memory serves asynchronous copies and words shared by host and device. Throws OutOfMemoryError
/// and CudaError.
std::byte* allocate_pinned(std::size_t bytes);
void free_pinned(std::byte* memory) noexcept;

/// Queues a copy. Each side is device memory or pinned memory.
void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView stream);
/// Queues a memset of device memory to zero.
void zero_bytes(void* memory, std::size_t bytes, StreamView stream);

/// Owner of pinned memory. Move-only.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(std::size_t bytes)
      : pointer_(bytes == 0 ? nullptr : allocate_pinned(bytes)), bytes_(bytes) {}
  ~PinnedBuffer() {
    if (pointer_ != nullptr) free_pinned(pointer_);
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(pointer_, other.pointer_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* pointer() const { return pointer_; }
  std::size_t bytes() const { return bytes_; }
  ByteSpan span() const { return {pointer_, bytes_}; }

 private:
  std::byte* pointer_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace tersor::kernels
