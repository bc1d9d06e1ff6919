// The residuals of all parameters: sender residuals, and owner residuals of the values owned by
// this rank.
#pragma once

#include "comm/reducer/memory_backend.h"

#include <tersor/buffer.h>
#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tersor {

/// The residual memory of each parameter, and the f32 memory of its codec (Codec::memory_count). If
/// steps can be discarded, two generations exist: a step reads the current generation and writes
/// the other.
class Residuals {
 public:
  Residuals(Dtype dtype, unsigned generations) : dtype_(dtype), generations_(generations) {}

  /// Sets the memory, and the stream for queued work. Call before the first `add`. Drops all
  /// residuals, including residuals in another memory.
  void set_backend(const MemoryBackend& backend);

  /// Allocates zeroed memory for another parameter. A count of 0 allocates nothing.
  void add(std::size_t count, std::size_t owned_count, std::size_t memory_count = 0);

  std::size_t parameters() const { return entries_.size(); }
  Dtype dtype() const { return dtype_; }

  /// The memory read and written by the next step.
  SegmentState sender(std::size_t i) const { return state(i, {0, entries_[i].count}); }
  SegmentState owner(std::size_t i) const { return state(i, owned(entries_[i])); }
  /// The first `count` values of the codec's memory; empty if `count` is 0.
  SegmentMemory memory(std::size_t parameter, std::size_t count) const;

  /// Replacement memory for a step that must not change the parameter's state: residuals of zeros,
  /// and memory for `count` values written by the codec.
  SegmentState scratch_sender(std::size_t parameter);
  SegmentState scratch_owner(std::size_t parameter);
  ValueSpan scratch_memory(std::size_t parameter, std::size_t count);

  /// The values after the last step.
  ValueSpan current_sender(std::size_t i) const { return current(i, {0, entries_[i].count}); }
  ValueSpan current_owner(std::size_t i) const { return current(i, owned(entries_[i])); }
  ValueSpan current_memory(std::size_t parameter, std::size_t count) const;
  /// The values after the last step and, if `discard` would restore values, the restored values.
  struct Version {
    ValueSpan sender, owner;
  };
  std::vector<Version> versions(std::size_t parameter) const;
  /// The Euclidean norm of each parameter's sender residual. Waits for queued work.
  std::vector<double> norms() const;

  /// Makes the step's writes current for the parameters that took part.
  void commit(const std::function<bool(std::size_t)>& took_part);
  /// Joins committed steps from now on: a step of a pending parameter writes in place, until
  /// `accept` or `discard`.
  void join() { joins_ = generations_ > 1; }
  bool joins() const { return joins_; }
  /// Restores the values from before the last committed step, or from before all joined steps.
  /// Returns false if no parameter has saved values.
  bool discard(std::span<const std::size_t> parameters);
  /// Drops the saved values.
  void accept(std::span<const std::size_t> parameters);
  /// If no parameter is pending, returns the number of steps discarded for all parameters.
  std::uint32_t take_discarded();

  /// These functions change all generations.
  void clear_owner(std::size_t parameter);
  void clear_memory(std::size_t parameter);
  void scale(std::size_t parameter, float factor);
  void clear();

 private:
  struct Entry {
    std::size_t count;
    std::size_t owned_count;
    std::size_t memory_count;
    std::vector<Buffer> memory;  ///< by generation: sender values, owner values, codec memory
    Buffer scratch_sender = {}, scratch_owner = {}, scratch_memory = {};  ///< on first use
    unsigned current = 0;
    bool pending = false;  ///< True if the other generation holds the values for `discard`
  };

  /// The range of owner values in a generation, after the sender values.
  static Range owned(const Entry& entry);
  /// Allocates zeroed memory on first use.
  ValueSpan scratch(Buffer& memory, std::size_t count, Dtype dtype);
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
  const MemoryBackend* backend_ = nullptr;
  bool joins_ = false;
  std::uint32_t steps_ = 0;  ///< committed since no parameter was pending
  bool accepted_ = false;    ///< True if some parameter accepted a step counted in steps_
  std::vector<Entry> entries_;
};

}  // namespace tersor
