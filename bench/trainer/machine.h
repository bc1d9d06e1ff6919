// Where a network lives and computes. A machine runs the steps of arithmetic.h: on the CPU as
// products of matrices, on a GPU a thread for each element, or, to test what the GPU runs, as a
// loop over the elements.
#pragma once

#include "bench/trainer/arithmetic.h"

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
  /// Where the machine reads what stands on the host: there, or in `room`, to which it is copied.
  const void* bring(const void* values, const tersor::Buffer&) const { return values; }
  void copy(void* to, const void* from, std::size_t bytes) const { std::memcpy(to, from, bytes); }
  void synchronize() const {}
};

/// The CPU, by Eigen and OpenBLAS. All runs on the caller's thread, and the result depends on the
/// arguments alone, whatever else runs beside it.
class CpuMachine : public ElementMachine {
 public:
  /// Sets OpenBLAS to one thread a call, for the whole process.
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

  /// Queues a thread for each element. In gpu_machine.cu, for each struct of arithmetic.h.
  template <typename Step>
  void run(const Step& step) const;
  const void* bring(const void* values, const tersor::Buffer& room) const {
    copy(room.pointer(), values, room.bytes());
    return room.pointer();
  }
  /// Queues a copy to or from the device.
  void copy(void* to, const void* from, std::size_t bytes) const;
  void synchronize() const;

 private:
  tersor::StreamView stream_;
};

}  // namespace trainer
