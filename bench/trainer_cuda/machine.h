// Where a network lives and computes: on a GPU, queued on a stream, or, for the tests, on the CPU.
#pragma once

#include "bench/trainer_cuda/arithmetic.h"

#include <tersor/span.h>
#include <tersor/stream.h>

#include <cstddef>

namespace trainer_cuda {

class CpuMachine {
 public:
  static constexpr tersor::Memory kMemory = tersor::Memory::kHost;

  template <typename Step>
  void for_each(std::size_t count, const Step& step) const {
    for (std::size_t i = 0; i < count; ++i) step(i);
  }
  void copy(void* to, const void* from, std::size_t bytes) const;
  void synchronize() const {}
};

class GpuMachine {
 public:
  static constexpr tersor::Memory kMemory = tersor::Memory::kDevice;

  explicit GpuMachine(tersor::StreamView stream) : stream_(stream) {}

  /// Queues a thread for each element. In gpu_machine.cu, for each struct of arithmetic.h.
  template <typename Step>
  void for_each(std::size_t count, const Step& step) const;
  /// Queues a copy to or from the device.
  void copy(void* to, const void* from, std::size_t bytes) const;
  void synchronize() const;

 private:
  tersor::StreamView stream_;
};

}  // namespace trainer_cuda
