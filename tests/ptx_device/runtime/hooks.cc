// See hooks.h.
#include "tests/ptx_device/runtime/hooks.h"

#include "tests/ptx_device/machine/memory.h"
#include "tests/ptx_device/runtime/copies.h"
#include "tests/ptx_device/runtime/queue.h"

namespace ptx {

bool queue_on(void* stream, std::function<void()> work, bool waits) {
  return queue(static_cast<cudaStream_t>(stream), std::move(work), waits) == cudaSuccess;
}

char* bytes_at(const void* pointer, std::size_t bytes) {
  if (place_of(pointer, bytes) == Place::kPageable) return nullptr;
  bool is_device = false;
  return Memory::get().host_of(pointer, bytes, is_device);
}

void mark_written(const void* pointer, std::size_t bytes) {
  Memory::get().mark_written(pointer, bytes);
}

}  // namespace ptx
