
#include "bench/common/gpu/gpu.h"

#include <algorithm>

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"

namespace tersor::bench {

std::size_t cache_bytes() {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, kernels::current_device()),
             "asking for the size of the cache");
  return static_cast<std::size_t>(std::max(properties.l2CacheSize, 1 << 20));
}

int device_count() {
  int count = 0;
  check_cuda(cudaGetDeviceCount(&count), "counting the devices");
  return count;
}

void copy_bytes(ConstByteSpan from, ByteSpan to, StreamView stream) {
  if (from.empty()) return;
  kernels::copy_bytes(to.data(), from.data(), from.size(), stream);
  kernels::synchronize(stream);
}

DeviceClock::DeviceClock(StreamView stream) : stream_(stream_of(stream)) {
  check_cuda(cudaEventCreate(&begin_), "making an event");
  check_cuda(cudaEventCreate(&end_), "making an event");
}

DeviceClock::~DeviceClock() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

double DeviceClock::seconds_per_call(const std::function<void()>& queue, std::size_t calls) {
  queue();
  const double seconds = seconds_of([&] {
    for (std::size_t call = 0; call < calls; ++call) queue();
  });
  return seconds / static_cast<double>(calls);
}

double DeviceClock::seconds_of(const std::function<void()>& queue) {
  check_cuda(cudaEventRecord(begin_, stream_), "recording an event");
  queue();
  check_cuda(cudaEventRecord(end_, stream_), "recording an event");
  check_cuda(cudaEventSynchronize(end_), "waiting for what is timed");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, begin_, end_), "reading the clock");
  return static_cast<double>(milliseconds) * 1e-3;
}

CallGraph::CallGraph(StreamView stream, const std::function<void()>& call, std::size_t calls)
    : stream_(stream_of(stream)) {
  call();  // one-time work such as loading kernels cannot be captured
  check_cuda(cudaStreamSynchronize(stream_), "waiting before a capture");
  check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
             "beginning a capture");
  for (std::size_t i = 0; i < calls; ++i) call();
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream_, &graph), "capturing calls");
  const cudaError_t status = cudaGraphInstantiate(&graph_, graph, 0);
  cudaGraphDestroy(graph);
  check_cuda(status, "making a graph");
}

CallGraph::~CallGraph() { cudaGraphExecDestroy(graph_); }

void CallGraph::queue() const { check_cuda(cudaGraphLaunch(graph_, stream_), "queueing a graph"); }

}  // namespace tersor::bench
