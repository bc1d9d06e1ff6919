// The memory of a reducer's gradients, host or device. Also holds the state words, one flag per
// parameter and, on a device, a separate stream ordered with the trainer's work.
#pragma once

#include "comm/collectives/context.h"

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tersor {

class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;

  virtual Memory memory() const = 0;
  /// The reducer's stream, and the trainer's stream.
  virtual StreamView stream() const { return {}; }
  virtual StreamView trainer() const { return {}; }
  /// Binds the state words and the overflow counter to an exchange. The context's transport must be
  /// set.
  virtual void bind(ExchangeContext& context) = 0;

  /// Sets the number of parameters. New flags are 1; existing flags keep their address.
  virtual void set_parameters(std::size_t count) = 0;
  virtual const std::uint32_t* active(std::size_t parameter) const = 0;
  /// Queues a write of the parameter's flag.
  virtual void set_active(std::size_t parameter, bool active) = 0;
  /// Queues an increment of the step.
  virtual void advance_step() = 0;
  /// Waits until the reducer's stream is idle. `step` and `set_step` also wait.
  virtual void synchronize() const {}
  virtual std::uint32_t step() const = 0;
  virtual void set_step(std::uint32_t step) = 0;
  /// Returns the overflows since the last reset; never waits. On the host, `counted` is returned:
  /// the count of the exchanges. On a device, overflows of completed steps count.
  virtual std::uint64_t overflows(std::uint64_t counted) const { return counted; }
  virtual void reset_overflows() {}

  /// Queues zeros. Pass the trainer's stream for gradients.
  virtual void clear(ByteSpan bytes, StreamView stream) const = 0;
  /// Queues a copy between the trainer's gradients.
  virtual void copy(ConstValueSpan from, ValueSpan to) const = 0;
  /// Queues a multiplication. Pass the trainer's stream for gradients.
  virtual void scale(ValueSpan values, float factor, StreamView stream) const = 0;
  /// Returns the Euclidean norm of each span. Waits for queued work.
  virtual std::vector<double> norms(std::span<const ConstValueSpan> all) const = 0;
  /// True if all bits are 0. False if the check would have to wait.
  virtual bool all_zero(ConstValueSpan) const { return false; }

  /// order_after_trainer: the reducer's later work waits for the trainer's work queued by now.
  /// order_before_trainer: the trainer's later work waits for the reducer's work.
  virtual void order_after_trainer() {}
  virtual void order_before_trainer() {}
  /// True if the trainer's stream is being captured.
  virtual bool captured() const { return false; }

  /// Call in a dedicated thread, because the trainer may capture its own streams meanwhile.
  virtual void set_up_worker() const {}
};

/// Starts with the words of a new StateWords. `trainer`: the trainer's stream for device gradients.
/// Memory and streams belong to the current device, which must be current in all later calls. Waits
/// for the device.
std::unique_ptr<MemoryBackend> make_memory_backend(Memory memory, StreamView trainer);

}  // namespace tersor
