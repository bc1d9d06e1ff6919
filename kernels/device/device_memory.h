// Memory of a device and pinned memory of the host, and what is queued on streams to fill them.
#pragma once

#include <tersor/span.h>
#include <tersor/stream.h>

#include <cstddef>
#include <utility>

namespace tersor::kernels {

/// At least 256-byte aligned memory of the current device. Throws OutOfMemory, CudaError.
std::byte* allocate_device(std::size_t bytes);
/// Waits for all that is queued on the device.
void free_device(std::byte* memory) noexcept;

/// Page-locked host memory, zeros at first, which the device reaches at the same address: the host
/// end of copies that nobody waits for, and of words that both sides read. Throws as above.
std::byte* allocate_pinned(std::size_t bytes);
void free_pinned(std::byte* memory) noexcept;

/// Queues a copy between any two of device memory and pinned memory.
void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView stream);
/// Queues zeros for device memory.
void zero_bytes(void* memory, std::size_t bytes, StreamView stream);

/// Owner of pinned memory. Move only.
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
