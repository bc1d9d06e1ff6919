// What the benchmarks ask of the CUDA runtime: the GPU's name and cache, a clock of events, graphs.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>
#include <tersor/stream.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>

namespace tersor::bench {

/// Throws CudaError that says what was being done.
void check_cuda(cudaError_t status, const char* doing);

inline cudaStream_t cuda_stream(StreamView stream) {
  return static_cast<cudaStream_t>(stream.handle);
}

struct Gpu {
  std::string name;
  std::size_t cache_bytes = 0;  ///< L2
};

/// The current device.
Gpu current_gpu();

/// How many devices this process sees. Throws CudaError where there is none.
int device_count();

/// Copies, and waits until it is done.
void copy_bytes(ConstByteSpan from, ByteSpan to, StreamView stream);

/// A copy on the host of bytes on the device, once all that the stream holds is done.
Buffer on_host(ConstByteSpan bytes, StreamView stream);

/// Times what is queued on a stream.
class DeviceClock {
 public:
  explicit DeviceClock(StreamView stream);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// Seconds a call over `calls` calls, which follow one that is not timed: the device is busy with
  /// it while the others are queued.
  double seconds_per_call(const std::function<void()>& queue, std::size_t calls);

  /// Seconds of one call, which begins on an idle stream.
  double seconds_of(const std::function<void()>& queue);

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// A number of calls, captured once, to be queued as one.
class CallGraph {
 public:
  CallGraph(StreamView stream, const std::function<void()>& call, std::size_t calls);
  ~CallGraph();
  CallGraph(const CallGraph&) = delete;
  CallGraph& operator=(const CallGraph&) = delete;

  void queue() const;

 private:
  cudaStream_t stream_;
  cudaGraphExec_t graph_ = nullptr;
};

}  // namespace tersor::bench
