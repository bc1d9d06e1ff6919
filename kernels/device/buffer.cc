// Implements <tersor/buffer.h>.
#include <tersor/align.h>
#include <tersor/buffer.h>

#include "kernels/device/device_memory.h"

#include <cstdlib>
#include <string>

namespace tersor {
namespace {

constexpr std::size_t kAlignment = 64;

std::byte* allocate_host(std::size_t bytes) {
  void* pointer = std::aligned_alloc(kAlignment, align_up(bytes, kAlignment));
  if (pointer == nullptr)
    throw OutOfMemoryError("cannot allocate " + std::to_string(bytes) + " bytes of host memory");
  return static_cast<std::byte*>(pointer);
}

}  // namespace

Buffer::Buffer(std::size_t bytes, Memory memory) : bytes_(bytes), memory_(memory) {
  if (bytes == 0) return;
  pointer_ = memory == Memory::kHost ? allocate_host(bytes) : kernels::allocate_device(bytes);
}

Buffer::~Buffer() {
  if (memory_ == Memory::kHost) {
    std::free(pointer_);
  } else if (pointer_ != nullptr) {
    kernels::free_device(pointer_);
  }
}

ValueSpan Buffer::values(std::size_t count, Dtype dtype) const {
  if (count > bytes_ / dtype_bytes(dtype))
    throw InvalidArgumentError(std::to_string(count) + " values of " +
                               std::string(dtype_name(dtype)) + " do not fit into a buffer of " +
                               std::to_string(bytes_) + " bytes");
  return {pointer_, count, dtype, memory_};
}

}  // namespace tersor
