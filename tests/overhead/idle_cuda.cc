// CUDA runtime functions used by the library, for a device without work. The program defines these
// functions, so no other runtime is linked. Copies run immediately, because agreements between
// ranks use copies. Kernels do not run, except marks, because the host waits for marks.
#include "kernels/device/marks.h"
#include "tests/overhead/idle_counts.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>

using tersor::idle::counts;

namespace {

constexpr int kMultiprocessors = 132, kBlocksOfEach = 8;

char somewhere;  // streams, events and modules are pointers to this variable

template <class Handle>
cudaError_t make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(&somewhere);
  return cudaSuccess;
}

cudaError_t allocate(void** pointer, std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  *pointer = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  return *pointer == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t count(std::uint64_t tersor::idle::Counts::*kind) {
  ++(counts.*kind);
  return cudaSuccess;
}

cudaError_t ask() { return count(&tersor::idle::Counts::questions); }

template <class Value>
cudaError_t answer(Value* target, Value value) {
  *target = value;
  return ask();
}

std::set<const void*>& marks() {
  static std::set<const void*> kernels;  // filled before main
  return kernels;
}

/// The parameters of MarkKernel (kernels/device/marks.cu).
struct Mark {
  tersor::kernels::ProgressWords* words;
  std::uint64_t* counter;
  bool begins;
  std::uint32_t timeout_ms, name;

  void run() const {
    if (begins) {
      __atomic_store_n(&words->timeout_ms, timeout_ms, __ATOMIC_RELAXED);
      __atomic_store_n(&words->name, name, __ATOMIC_RELAXED);
    }
    __atomic_fetch_add(counter, 1, __ATOMIC_RELEASE);
  }
};

cudaError_t launch(const void* kernel, void** arguments) {
  if (marks().contains(kernel)) static_cast<const Mark*>(arguments[0])->run();
  return count(&tersor::idle::Counts::launches);
}

}  // namespace

extern "C" {

// Functions called by nvcc's code: registration before main, and <<<…>>> launches (unused here).
void** __cudaRegisterFatBinary(void*) {
  static void* module = &somewhere;
  return &module;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, void*, void*,
                            void*, void*, int*) {
  if (std::string_view(name).find("MarkKernel") != std::string_view::npos) marks().insert(kernel);
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) { std::abort(); }
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) { std::abort(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { std::abort(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, std::size_t, cudaStream_t) {
  std::abort();
}

// Queued work.
cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void** arguments, std::size_t,
                             cudaStream_t) {
  return launch(kernel, arguments);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  std::memcpy(to, from, bytes);
  return count(&tersor::idle::Counts::launches);
}
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t) {
  return count(&tersor::idle::Counts::launches);
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) {
  return count(&tersor::idle::Counts::events);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) {
  return count(&tersor::idle::Counts::events);
}
cudaError_t cudaEventQuery(cudaEvent_t) { return count(&tersor::idle::Counts::events); }

// Resources created once.
cudaError_t cudaMalloc(void** pointer, std::size_t bytes) { return allocate(pointer, bytes); }
cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  return allocate(pointer, bytes);
}
cudaError_t cudaFree(void* pointer) {
  std::free(pointer);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) { return cudaFree(pointer); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) { return make(stream); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return make(event); }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }

// Queries.
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void*) {
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  return count(&tersor::idle::Counts::pointers);
}
cudaError_t cudaGetDevice(int* device) { return answer(device, 0); }
cudaError_t cudaSetDevice(int) { return ask(); }
cudaError_t cudaGetDeviceCount(int* devices) { return answer(devices, 1); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int) { std::abort(); }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  return answer(value, which == cudaDevAttrMultiProcessorCount ? kMultiprocessors : 0);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return ask(); }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          std::size_t) {
  return answer(blocks, kBlocksOfEach);
}
cudaError_t cudaStreamGetDevice(cudaStream_t, int* device) { return answer(device, 0); }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status,
                                     unsigned long long*, cudaGraph_t*, const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, std::size_t*) {
  return answer(status, cudaStreamCaptureStatusNone);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return ask(); }
cudaError_t cudaGetLastError() { return ask(); }
cudaError_t cudaPeekAtLastError() { return ask(); }
const char* cudaGetErrorString(cudaError_t) { return "no error"; }

}  // extern "C"
