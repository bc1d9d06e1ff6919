// CUDA runtime functions for benchmarks: the GPU's cache size, a clock of events, graphs.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>
#include <tersor/stream.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "kernels/device/cuda_error.h"

namespace tersor::bench {

using kernels::check_cuda, kernels::stream_of;

/// Returns the size of the current device's L2 cache.
std::size_t cache_bytes();

/// Returns the number of visible devices. Throws CudaError if there is no device.
int device_count();

/// Copies and waits for the copy.
void copy_bytes(ConstByteSpan from, ByteSpan to, StreamView stream);

/// Times the work queued on a stream.
class DeviceClock {
 public:
  explicit DeviceClock(StreamView stream);
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  /// Returns the seconds per call over `calls` calls. An untimed call runs first and keeps the
  /// device busy while the timed calls are queued.
  double seconds_per_call(const std::function<void()>& queue, std::size_t calls);

  /// Returns the seconds of a single call on an idle stream.
  double seconds_of(const std::function<void()>& queue);

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Several calls, captured once and queued as a single graph.
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
