// One thread per element of a step. The grid has as many blocks of kThreads threads as the elements
// need. The structs of arithmetic.h define each thread's reads and writes; neighbouring threads
// write neighbouring elements.
#include "bench/train/trainer/machine.h"

#include <tersor/error.h>

#include <cuda_runtime_api.h>

#include <string>

namespace trainer {
namespace {

constexpr unsigned kThreads = 256;  // per block

template <typename Step>
__global__ void run_elements(std::size_t count, Step step) {
  const std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) step(i);
}

void check(cudaError_t status, const char* doing) {
  if (status != cudaSuccess)
    throw tersor::CudaError(std::string(doing) + ": " + cudaGetErrorString(status));
}

cudaStream_t queue(tersor::StreamView stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

template <typename Step>
void GpuMachine::run(const Step& step) const {
  const std::size_t count = step.elements();
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  run_elements<<<blocks, kThreads, 0, queue(stream_)>>>(count, step);
  check(cudaGetLastError(), "queueing a kernel");
}

template void GpuMachine::run(const Forward&) const;
template void GpuMachine::run(const SoftmaxLoss&) const;
template void GpuMachine::run(const WeightGradient&) const;
template void GpuMachine::run(const BiasGradient&) const;
template void GpuMachine::run(const InputGradient&) const;
template void GpuMachine::run(const Descend&) const;

void GpuMachine::copy(void* to, const void* from, std::size_t bytes) const {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, queue(stream_)), "queueing a copy");
}

void GpuMachine::synchronize() const {
  check(cudaStreamSynchronize(queue(stream_)), "waiting for a stream");
}

}  // namespace trainer
