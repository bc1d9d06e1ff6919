// See copies.h: functions for copies and fills of memory.
#include "tests/ptx_device/runtime/copies.h"

#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/modules.h"
#include "tests/ptx_device/runtime/queue.h"

#include <cstdio>
#include <cstring>

namespace ptx {

CopySide place_of(const void* pointer, std::size_t bytes) {
  bool is_device = false;
  const char* host = Memory::get().host_of(pointer, bytes, is_device);
  if (is_device) return host == nullptr ? CopySide::kBad : CopySide::kDevice;
  const Allocation* found = Memory::get().find(reinterpret_cast<std::uint64_t>(pointer));
  return found == nullptr ? CopySide::kPageable : CopySide::kPinned;
}

namespace {

enum class Wait { kIfPageable, kYes };

struct Copy {
  void* to;
  const void* from;
  std::size_t bytes;
  cudaMemcpyKind kind;
};

void say(const Copy& copy, const char* what) {
  const auto to = Memory::get().describe(reinterpret_cast<std::uint64_t>(copy.to));
  const auto from = Memory::get().describe(reinterpret_cast<std::uint64_t>(copy.from));
  std::fprintf(stderr, "ptx-device: a copy of %zu bytes (kind %d) %s: to %p (%s), from %p (%s)\n",
               copy.bytes, static_cast<int>(copy.kind), what, copy.to, to.c_str(), copy.from,
               from.c_str());
}

void copy_now(const Copy& copy) {
  Memory& memory = Memory::get();
  bool to_device = false, from_device = false;
  char* target = memory.host_of(copy.to, copy.bytes, to_device);
  const char* source = memory.host_of(copy.from, copy.bytes, from_device);
  if (target == nullptr || source == nullptr) {
    say(copy, "touches no allocation");
    return break_device(cudaErrorIllegalAddress);
  }
  std::memmove(target, source, copy.bytes);
  memory.copy_marks(copy.to, copy.from, copy.bytes);
}

bool fits(cudaMemcpyKind kind, CopySide to, CopySide from) {
  if (to == CopySide::kBad || from == CopySide::kBad) return false;
  const bool to_device = to == CopySide::kDevice, from_device = from == CopySide::kDevice;
  switch (kind) {
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
      return !from_device && to != CopySide::kPageable;
    case cudaMemcpyDeviceToHost:
      return !to_device && from != CopySide::kPageable;
    case cudaMemcpyDeviceToDevice:
      return to != CopySide::kPageable && from != CopySide::kPageable;
    default:
      return true;
  }
}

/// The caller may change pageable memory after the call returns.
cudaError_t queue_with_own_bytes(const Copy& copy, cudaStream_t stream) {
  const auto* from = static_cast<const char*>(copy.from);
  const auto bytes = std::make_shared<std::vector<char>>(from, from + copy.bytes);
  return queue(stream, [=] { copy_now({copy.to, bytes->data(), bytes->size(), copy.kind}); });
}

cudaError_t queue_copy(const Copy& copy, cudaStream_t stream, Wait wait) {
  if (copy.bytes == 0) return cudaSuccess;
  const CopySide target = place_of(copy.to, copy.bytes), source = place_of(copy.from, copy.bytes);
  if (!fits(copy.kind, target, source)) {
    say(copy, "is refused");
    return cudaErrorInvalidValue;
  }
  const bool captured = is_captured(stream);
  const cudaError_t status = source == CopySide::kPageable && !captured
                                 ? queue_with_own_bytes(copy, stream)
                                 : queue(stream, [=] { copy_now(copy); });
  if (status != cudaSuccess || captured) return status;
  const bool waits = wait == Wait::kYes || target == CopySide::kPageable;
  return waits ? synchronize(stream_of(stream)) : cudaSuccess;
}

void fill_now(void* pointer, int value, std::size_t bytes) {
  bool is_device = false;
  char* host = Memory::get().host_of(pointer, bytes, is_device);
  if (host == nullptr) {
    std::fprintf(stderr, "ptx-device: memset of freed memory\n");
    return break_device(cudaErrorIllegalAddress);
  }
  std::memset(host, value, bytes);
  Memory::get().mark(pointer, bytes, true);
}

cudaError_t queue_fill(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  const CopySide place = place_of(pointer, bytes);
  if (place == CopySide::kBad || place == CopySide::kPageable) return cudaErrorInvalidValue;
  return queue(stream, [=] { fill_now(pointer, value, bytes); });
}

}  // namespace
}  // namespace ptx

using namespace ptx;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  PTX_API;
  PTX_UNSAFE;
  return done(queue_copy({to, from, bytes, kind}, nullptr, Wait::kYes));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  PTX_API;
  return done(queue_copy({to, from, bytes, kind}, stream, Wait::kIfPageable));
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, std::size_t bytes,
                                cudaStream_t stream) {
  PTX_API;
  return done(queue_copy({to, from, bytes, cudaMemcpyDefault}, stream, Wait::kIfPageable));
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes,
                               std::size_t offset, cudaMemcpyKind kind) {
  PTX_API;
  PTX_UNSAFE;
  void* pointer = nullptr;
  const cudaError_t status = symbol_address(&pointer, symbol);
  if (status != cudaSuccess) return done(status);
  const Copy copy{static_cast<char*>(pointer) + offset, from, bytes, kind};
  return done(queue_copy(copy, nullptr, Wait::kYes));
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t bytes,
                                 std::size_t offset, cudaMemcpyKind kind) {
  PTX_API;
  PTX_UNSAFE;
  void* pointer = nullptr;
  const cudaError_t status = symbol_address(&pointer, symbol);
  if (status != cudaSuccess) return done(status);
  const Copy copy{to, static_cast<char*>(pointer) + offset, bytes, kind};
  return done(queue_copy(copy, nullptr, Wait::kYes));
}

cudaError_t cudaMemset(void* pointer, int value, std::size_t bytes) {
  PTX_API;
  PTX_UNSAFE;
  return done(queue_fill(pointer, value, bytes, nullptr));
}

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
  PTX_API;
  return done(queue_fill(pointer, value, bytes, stream));
}

cudaError_t cudaMemPrefetchAsync(const void*, std::size_t, cudaMemLocation, unsigned,
                                 cudaStream_t) {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

}  // extern "C"
