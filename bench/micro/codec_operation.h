// An operation of a codec in tersor-microbench, and its input. Each operation checks its result
// before timing: the result must be near the encoded values. On a device, the result must also
// equal the CPU codec's result byte for byte.
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

#include "bench/common/samples.h"
#include "bench/micro/machine.h"
#include "codecs/planned_codec.h"

namespace tersor::bench {

/// The input of an operation. The gradient is on the host and may be longer than `count`. Then each
/// call uses another range of `count` values, like the steps of a training.
struct OperationInput {
  std::string codec;  ///< without "+ef"
  std::size_t count = 0;
  std::shared_ptr<const SampleSource> source;
  std::shared_ptr<const Buffer> storage;  ///< memory of the gradient
  ConstValueSpan gradient;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;
  Machine* machine = nullptr;

  /// The values of call number `index`.
  ConstValueSpan step(std::size_t index) const;
  PlanInput plan_on_host(std::size_t contributions = 1) const;
  PlanInput plan_on_machine(std::size_t contributions = 1) const;
};

/// One operation of a codec on a gradient. Calls rotate through several sets of buffers.
class CodecOperation {
 public:
  explicit CodecOperation(const OperationInput& input) : input_(input) {}
  virtual ~CodecOperation() = default;
  CodecOperation(const CodecOperation&) = delete;
  CodecOperation& operator=(const CodecOperation&) = delete;

  /// Runs once and checks the result. Returns the relative error of the encoded values. Throws
  /// Error for a wrong result.
  virtual double check() = 0;
  /// Runs one call. On a device, queues the call.
  void run() { call(calls_++); }
  /// The timed call. By default, `run` is called repeatedly.
  virtual TimedCall timed() {
    return {"operation", [this] { run(); }};
  }
  /// The references, timed in alternation. The first reference is the baseline of the ratio.
  virtual std::vector<TimedCall> references() {
    return input_.machine->baselines(work_, *input_.threads);
  }

  std::size_t useful_bytes() const { return work_.bytes; }
  std::size_t payload_bytes() const { return payload_bytes_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 protected:
  /// Runs call number `call`, counted from 0.
  virtual void call(std::size_t call) = 0;
  /// Stores the memory work of a call. Returns the number of buffer sets.
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
  /// Decodes a frame with the host's codec.
  Buffer decoded(const PlannedCodec& on_host, const Buffer& frame) const;
  /// Throws Error unless this machine's bytes equal the CPU codec's bytes.
  static void require_same(ConstByteSpan expected, const Buffer& actual, std::string_view what);

  OperationInput input_;
  MemoryWork work_;
  std::size_t payload_bytes_ = 0;
  std::size_t workspace_bytes_ = 0;

 private:
  std::size_t calls_ = 0;
};

/// Selects whether calls without a residual also use different values in each call.
enum class Steps : std::uint8_t { kOnDevices, kAll };

/// Gradients on the machine of the operation. On a host, these are the input's gradients.
class Gradients {
 public:
  Gradients(const OperationInput& input, std::size_t sets, Steps steps);
  ConstValueSpan at(std::size_t call) const;

 private:
  std::size_t count_;
  std::optional<RotatedBuffer> copies_;
  std::vector<ConstValueSpan> sets_;
};

/// A residual and its state words on the host.
struct HostState {
  Buffer residual;
  StateWords words = {};

  ValueSpan values() const;
  SegmentState state() const { return in_place(values()); }
};

/// f32 residuals on the machine of the operation, one per set of buffers, with shared state words.
/// On a host, residuals start at zero. On a device, all residuals start with equal values of the
/// source.
class ResidualStates {
 public:
  ResidualStates(const OperationInput& input, std::size_t sets);

  bool starts_at_zero() const { return starts_at_zero_; }
  ConstValueSpan initial() const { return initial_.values(count_, Dtype::kF32); }
  HostState on_host() const;
  ValueSpan residual(std::size_t call) const {
    return residuals_.values(call, count_, Dtype::kF32);
  }
  const RotatedBuffer& residuals() const { return residuals_; }
  StateWords* words() const { return reinterpret_cast<StateWords*>(words_.pointer()); }

 private:
  std::size_t count_;
  bool starts_at_zero_;
  Buffer initial_;
  RotatedBuffer residuals_;
  Buffer words_;
};

/// Returns ||decoded - p|| / ||p|| with p = gradient + residual.
double feedback_error(ConstValueSpan gradient, ConstValueSpan residual, ConstValueSpan decoded);

}  // namespace tersor::bench
