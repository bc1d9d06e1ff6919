// The residuals of all parameters: the sender's, and of what this rank owns the owner's.
#pragma once

#include "comm/reducer/residence.h"

#include <tersor/buffer.h>
#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tersor {

/// One parameter's residual memory, and its codec's own (Codec::memory_count), f32. Kept in two
/// generations where steps can be thrown away: a step reads the current one and writes the other.
class Residuals {
 public:
  Residuals(Dtype dtype, unsigned generations) : dtype_(dtype), generations_(generations) {}

  /// Before the first `add`: where residuals lie, and what is done to them is queued. None is there
  /// then, whatever was added to another place.
  void place(const Residence& residence);

  /// Memory for one more parameter, zero at first. Counts of 0 keep nothing.
  void add(std::size_t count, std::size_t owned_count, std::size_t memory_count = 0);

  std::size_t parameters() const { return entries_.size(); }
  Dtype dtype() const { return dtype_; }

  /// What the next step reads and writes.
  SegmentState sender(std::size_t i) const { return state(i, {0, entries_[i].count}); }
  SegmentState owner(std::size_t i) const { return state(i, owned(entries_[i])); }
  /// The first `count` values of the codec's memory; none for 0.
  SegmentMemory memory(std::size_t parameter, std::size_t count) const;

  /// For a step that leaves a parameter alone: zeros that stay so where there is nothing to pay,
  /// and memory to write to, in the place of its own.
  SegmentState idle_owner(std::size_t parameter);
  ValueSpan idle_memory(std::size_t parameter);

  /// What stands after the last step.
  ValueSpan current_sender(std::size_t i) const { return current(i, {0, entries_[i].count}); }
  ValueSpan current_owner(std::size_t i) const { return current(i, owned(entries_[i])); }
  ValueSpan current_memory(std::size_t parameter, std::size_t count) const;
  /// The Euclidean norm of each parameter's sender; waits for what is queued.
  std::vector<double> norms() const;

  /// The step's writes count from now on, of the parameters that took part in it.
  void commit(const std::function<bool(std::size_t)>& took_part);
  /// From now on committed steps join: a step of a pending parameter writes in place, until
  /// `accept` or `discard`.
  void join() { joins_ = generations_ > 1; }
  bool joins() const { return joins_; }
  /// Brings back the values from before the last committed step, or from before all joined ones.
  /// False if no parameter has them.
  bool discard(std::span<const std::size_t> parameters);
  /// Gives those values up.
  void accept(std::span<const std::size_t> parameters);
  /// Once no parameter is pending: the number of steps that were discarded for all parameters.
  std::uint32_t take_discarded();

  /// In all generations.
  void clear_owner(std::size_t parameter);
  void clear_memory(std::size_t parameter);
  void scale(std::size_t parameter, float factor);
  void clear();

 private:
  struct Entry {
    std::size_t count;
    std::size_t owned_count;
    std::size_t memory_count;
    std::vector<Buffer> memory;  ///< a generation each: sender's values, owner's, the codec's
    Buffer idle = {};            ///< the owner's, then the codec's; made when it is needed
    unsigned current = 0;
    bool pending = false;  ///< the other generation holds values that `discard` brings back
  };

  /// The owner's values in a generation: behind the sender's.
  static Range owned(const Entry& entry);
  Buffer& idle(std::size_t parameter);
  /// Zeros `part(generation)` of each generation.
  void clear_each(const std::function<ValueSpan(unsigned)>& part);
  ValueSpan values(std::size_t parameter, unsigned generation, Range range) const;
  SegmentState state(std::size_t parameter, Range range) const;
  ValueSpan current(std::size_t parameter, Range range) const;
  ValueSpan codec_memory(std::size_t parameter, unsigned generation, std::size_t count) const;
  std::size_t residual_bytes(const Entry& entry) const;
  unsigned other(const Entry& entry) const { return (entry.current + 1) % generations_; }
  unsigned next(const Entry& entry) const {
    return joins_ && entry.pending ? entry.current : other(entry);
  }

  Dtype dtype_;
  unsigned generations_;
  const Residence* residence_ = nullptr;
  bool joins_ = false;
  std::uint32_t steps_ = 0;  ///< committed since no parameter was pending
  bool accepted_ = false;    ///< some parameter accepted one of these steps
  std::vector<Entry> entries_;
};

}  // namespace tersor
