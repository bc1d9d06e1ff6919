// Where a reducer's gradients lie, on the host or on a device, and what it keeps beside them: the
// words of the state, a flag for each parameter, and on a device a stream of its own between the
// trainer's work.
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

class Residence {
 public:
  virtual ~Residence() = default;

  virtual Memory memory() const = 0;
  /// Where the reducer queues its work; and the trainer.
  virtual StreamView stream() const { return {}; }
  virtual StreamView trainer() const { return {}; }
  /// An exchange reads words and counts overflows here. The transport is known already.
  virtual void bind(ExchangeContext& context) = 0;

  /// There are so many: the flags of new ones are 1, those of others stay where they lie.
  virtual void set_parameters(std::size_t count) = 0;
  virtual const std::uint32_t* active(std::size_t parameter) const = 0;
  /// Queues a parameter's flag.
  virtual void set_active(std::size_t parameter, bool active) = 0;
  /// Queues step + 1.
  virtual void advance_step() = 0;
  /// Waits until the reducer's stream has nothing more to do; and so do these.
  virtual void synchronize() const {}
  virtual std::uint32_t step() const = 0;
  virtual void set_step(std::uint32_t step) = 0;
  /// Since the last reset, where `counted` is what the exchanges counted by then; on a device in
  /// the steps that are done. Never waits.
  virtual std::uint64_t overflows(std::uint64_t counted) const { return counted; }
  virtual void reset_overflows() {}

  /// Queues zeros; a gradient's where the trainer queues.
  virtual void clear(ByteSpan bytes, StreamView stream) const = 0;
  /// Queues a copy between the trainer's gradients.
  virtual void copy(ConstValueSpan from, ValueSpan to) const = 0;
  /// Queues a product; a gradient's where the trainer queues.
  virtual void scale(ValueSpan values, float factor, StreamView stream) const = 0;
  /// The Euclidean norm of each; waits for what is queued.
  virtual std::vector<double> norms(std::span<const ConstValueSpan> all) const = 0;
  /// Whether all bits are 0. False where a look would have to wait.
  virtual bool all_zero(ConstValueSpan) const { return false; }

  /// What the reducer queues from now on comes after what the trainer queued so far; and the other
  /// way round.
  virtual void follow_trainer() {}
  virtual void lead_trainer() {}
  /// Whether the trainer's work is being captured.
  virtual bool captured() const { return false; }

  /// For a thread that does nothing else, beside a trainer that may capture its own streams.
  virtual void become_worker() const {}
  /// While it lives, the calling thread's calls are for the reducer's device.
  class Entry {
   public:
    explicit Entry(const Residence& residence)
        : residence_(residence), before_(residence.enter()) {}
    ~Entry() { residence_.leave(before_); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    const Residence& residence_;
    int before_;
  };

 private:
  virtual int enter() const { return 0; }
  virtual void leave(int) const {}
};

/// Words as in a new StateWords. `trainer`: where the trainer of device gradients queues; waits for
/// the device.
std::unique_ptr<Residence> make_residence(Memory memory, StreamView trainer);

}  // namespace tersor
