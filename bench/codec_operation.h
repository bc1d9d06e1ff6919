// An operation of a codec that `tersor-bench codecs` times, and what it works on. Each checks what
// it yields before it is timed: that it is near to what was encoded, and on a device that it is
// what the CPU's codec yields, byte for byte.
#pragma once

#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/error.h>
#include <tersor/span.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/machine.h"
#include "bench/samples.h"
#include "codecs/planned_codec.h"

namespace tersor::bench {

/// What an operation works on. The gradient lies on the host and may be longer than `count`: calls
/// then take another `count` of its values each, as each step of a training would.
struct OperationInput {
  std::string codec;  ///< without "+ef"
  std::size_t count = 0;
  std::shared_ptr<const SampleSource> source;
  std::shared_ptr<const Buffer> storage;  ///< of the gradient
  ConstValueSpan gradient;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;
  Machine* machine = nullptr;

  /// The values that call number `index` takes.
  ConstValueSpan step(std::size_t index) const;
  PlanFor plan_on_host(std::size_t contributions = 1) const;
  PlanFor plan_on_machine(std::size_t contributions = 1) const;
};

/// What an operation is to time does not happen with these values: it is left out of the run.
class NotMeasurable : public Error {
 public:
  using Error::Error;
};

/// One operation of one codec on one gradient. Its calls go round several sets of buffers.
class CodecOperation {
 public:
  explicit CodecOperation(const OperationInput& input) : input_(input) {}
  virtual ~CodecOperation() = default;
  CodecOperation(const CodecOperation&) = delete;
  CodecOperation& operator=(const CodecOperation&) = delete;

  /// Runs once and holds the result against what it should be. Returns the relative error of what
  /// was encoded. Throws Error where the result is wrong, NotMeasurable where it is not to be had.
  virtual double check() = 0;
  /// One call; on a device queues it.
  void run() { call(calls_++); }
  /// How the operation is timed: call after call, unless it says otherwise.
  virtual TimedCall timed() {
    return {"operation", [this] { run(); }};
  }
  /// What is timed in between; the first is what the ratio is to.
  virtual std::vector<TimedCall> references() {
    return input_.machine->baselines(work_, *input_.threads);
  }

  std::size_t useful_bytes() const { return work_.bytes; }
  std::size_t payload_bytes() const { return payload_bytes_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 protected:
  /// Call number `call`, from 0.
  virtual void call(std::size_t call) = 0;
  /// Keeps what a call must do; how many sets of buffers its calls go round.
  std::size_t sets_for(const MemoryWork& work) {
    work_ = work;
    return input_.machine->sets(work.bytes);
  }
  RotatedBuffer rotated(std::size_t sets, std::size_t bytes) const {
    return {sets, bytes, input_.machine->traits().memory};
  }

  /// The values of the first call.
  ConstValueSpan gradient() const { return input_.step(0); }
  ValueSpan as_gradient(const Buffer& buffer) const {
    return buffer.values(input_.count, input_.gradient.dtype());
  }
  Buffer copy_of_gradient() const;
  std::size_t residual_bytes() const { return input_.count * sizeof(float); }

  Buffer on_host(const RotatedBuffer& first_set) const {
    return input_.machine->on_host(first_set.at(0));
  }
  /// What the codec makes of a frame on the host.
  Buffer decoded(const PlannedCodec& on_host, const Buffer& frame) const;
  /// Throws Error unless this machine's bytes are those that the CPU's codec yields.
  static void require_same(ConstByteSpan expected, const Buffer& actual, std::string_view what);

  OperationInput input_;
  MemoryWork work_;
  std::size_t payload_bytes_ = 0;
  std::size_t workspace_bytes_ = 0;

 private:
  std::size_t calls_ = 0;
};

/// Whether calls that keep no residual take other values each time as well.
enum class Steps : std::uint8_t { kOnDevices, kAll };

/// Gradients where the operation runs; on a host those of the input.
class Gradients {
 public:
  Gradients(const OperationInput& input, std::size_t sets, Steps steps);
  ConstValueSpan at(std::size_t call) const;

 private:
  std::size_t count_;
  std::optional<RotatedBuffer> copies_;
  std::vector<ConstValueSpan> sets_;
};

/// A residual and its words on the host.
struct HostState {
  Buffer residual;
  StateWords words = {};

  ValueSpan values() const;
  SegmentState state() const { return in_place(values()); }
};

/// Residuals of f32 where the operation runs, one for each set of buffers, and the words of all. On
/// a host they are zeros at first, on a device all the same values of the source.
class ResidualStates {
 public:
  ResidualStates(const OperationInput& input, std::size_t sets);

  bool begin_empty() const { return begin_empty_; }
  ConstValueSpan initial() const { return initial_.values(count_, Dtype::kF32); }
  HostState on_host() const;
  ValueSpan residual(std::size_t call) const {
    return residuals_.values(call, count_, Dtype::kF32);
  }
  const RotatedBuffer& residuals() const { return residuals_; }
  StateWords* words() const { return reinterpret_cast<StateWords*>(words_.pointer()); }

 private:
  std::size_t count_;
  bool begin_empty_;
  Buffer initial_;
  RotatedBuffer residuals_;
  Buffer words_;
};

/// ||decoded - p|| / ||p||, p = gradient + residual.
double feedback_error(ConstValueSpan gradient, ConstValueSpan residual, ConstValueSpan decoded);

}  // namespace tersor::bench
