// See allocations.h: functions for allocating and freeing memory, and for pointer attributes.
#include "tests/ptx_device/runtime/allocations.h"

#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/modules.h"
#include "tests/ptx_device/runtime/queue.h"

#include <algorithm>

namespace ptx {
namespace {

std::atomic<std::size_t> allocated_now{0};

cudaError_t allocate(void** pointer, std::size_t bytes, MemoryKind kind) {
  *pointer = Memory::get().allocate(bytes, kind, current_device());
  if (*pointer == nullptr) return done(cudaErrorMemoryAllocation);
  ++allocated_now;
  return cudaSuccess;
}

cudaError_t release_now(void* pointer, MemoryKind kind) {
  if (!Memory::get().free(pointer, kind)) return done(cudaErrorInvalidValue);
  --allocated_now;
  return cudaSuccess;
}

/// After a device error, the device's memory is lost with its context. Therefore the function also
/// returns the device error.
cudaError_t release(void* pointer, MemoryKind kind) {
  PTX_UNSAFE;
  wait_for_device(current_device());
  const cudaError_t status = release_now(pointer, kind);
  return sticky() == cudaSuccess ? status : done(sticky());
}

cudaMemoryType type_of(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kPinned:
      return cudaMemoryTypeHost;
    case MemoryKind::kManaged:
      return cudaMemoryTypeManaged;
    default:
      return cudaMemoryTypeDevice;
  }
}

cudaPointerAttributes attributes_of(const void* pointer) {
  const Allocation* found = Memory::get().find(reinterpret_cast<std::uint64_t>(pointer));
  const bool is_host = found == nullptr || found->delta == 0;
  cudaPointerAttributes made{};
  made.type = found == nullptr ? cudaMemoryTypeUnregistered : type_of(found->kind);
  made.device = found == nullptr ? cudaInvalidDeviceId : found->device;
  if (found != nullptr) made.devicePointer = const_cast<void*>(pointer);
  if (is_host) made.hostPointer = const_cast<void*>(pointer);
  return made;
}

}  // namespace

std::size_t live_allocations() { return allocated_now; }

}  // namespace ptx

using namespace ptx;

extern "C" {

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  PTX_API;
  PTX_UNSAFE;
  *pointer = nullptr;
  return bytes == 0 ? cudaSuccess : allocate(pointer, bytes, MemoryKind::kDevice);
}

cudaError_t cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  PTX_API;
  PTX_UNSAFE;
  if (bytes == 0) return done(cudaErrorInvalidValue);
  return allocate(pointer, bytes, MemoryKind::kManaged);
}

cudaError_t cudaFree(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  PTX_API_ENDS(release(pointer, MemoryKind::kDevice));
}

cudaError_t cudaMallocAsync(void** pointer, std::size_t bytes, cudaStream_t) {
  PTX_API;
  return allocate(pointer, std::max<std::size_t>(bytes, 1), MemoryKind::kDevice);
}

cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  PTX_API;
  return done(queue(stream, [=] { release_now(pointer, MemoryKind::kDevice); }));
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  PTX_API;
  PTX_UNSAFE;
  return allocate(pointer, bytes, MemoryKind::kPinned);
}

cudaError_t cudaMallocHost(void** pointer, std::size_t bytes) {
  PTX_API;
  PTX_UNSAFE;
  return allocate(pointer, bytes, MemoryKind::kPinned);
}

cudaError_t cudaFreeHost(void* pointer) {
  if (pointer == nullptr) return cudaSuccess;
  PTX_API_ENDS(release(pointer, MemoryKind::kPinned));
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  PTX_API;
  Memory::get().add_host(pointer, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  PTX_API_ALWAYS;
  const bool was_registered = Memory::get().remove_host(pointer);
  return done(was_registered ? cudaSuccess : cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  PTX_API_ALWAYS;
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  PTX_API;
  *attributes = attributes_of(pointer);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  PTX_API;
  *total = Memory::get().total();
  *free_bytes = *total - Memory::get().used();
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  PTX_API_ALWAYS;
  return done(symbol_address(pointer, symbol));
}

}  // extern "C"
