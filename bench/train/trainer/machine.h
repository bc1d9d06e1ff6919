// The machines of a network. A machine runs the steps of arithmetic.h: the CPU as products of
// matrices, a GPU with a thread per element. A loop over the elements tests the GPU's arithmetic.
#pragma once

#include "bench/train/trainer/arithmetic.h"

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <cstddef>
#include <cstring>

namespace trainer {

/// The CPU, element by element.
class ElementMachine {
 public:
  static constexpr tersor::Memory kMemory = tersor::Memory::kHost;

  template <typename Step>
  void run(const Step& step) const {
    for (std::size_t i = 0; i < step.elements(); ++i) step(i);
  }
  /// Returns host values for use by the machine: `values` or, on a GPU, a copy in `space`.
  const void* bring(const void* values, const tersor::Buffer&) const { return values; }
  void copy(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  void synchronize() const {}
};

/// The CPU, with Eigen and OpenBLAS. Runs on the caller's thread. Results depend only on the
/// arguments.
class CpuMachine : public ElementMachine {
 public:
  /// Sets OpenBLAS to one thread per call for the whole process.
  CpuMachine();

  using ElementMachine::run;
  void run(const Forward& step) const;
  void run(const WeightGradient& step) const;
  void run(const BiasGradient& step) const;
  void run(const InputGradient& step) const;
};

class GpuMachine {
 public:
  static constexpr tersor::Memory kMemory = tersor::Memory::kDevice;

  explicit GpuMachine(tersor::StreamView stream) : stream_(stream) {}

  /// Queues a thread per element. Instantiated in gpu_machine.cu for each struct of arithmetic.h.
  template <typename Step>
  void run(const Step& step) const;
  const void* bring(const void* values, const tersor::Buffer& space) const {
    copy(space.pointer(), values, space.bytes());
    return space.pointer();
  }
  /// Queues a copy to or from the device.
  void copy(void* to, const void* from, std::size_t bytes) const;
  void synchronize() const;

 private:
  tersor::StreamView stream_;
};

}  // namespace trainer
