// The residuals of all parameters: sender residuals, and owner residuals of the values owned by
// this rank.
#pragma once

#include "comm/reducer/memory_backend.h"

#include <tersor/buffer.h>
#include <tersor/codec.h>

#include <array>
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

  enum Kind : std::size_t { kSender, kOwner, kMemory };
  /// The memory read and written by the next step.
  SegmentState sender(std::size_t i) const { return {current_sender(i), written(i, kSender)}; }
  SegmentState owner(std::size_t i) const { return {current_owner(i), written(i, kOwner)}; }
  /// The first `count` values of the codec's memory.
  SegmentMemory memory(std::size_t i, std::size_t count) const {
    return {current_memory(i, count), written(i, kMemory).subspan(0, count)};
  }
  /// Zeroed replacement memory for a step that must not change the parameter's state. Allocates on
  /// first use. A later phase may use a codec with more memory, so kMemory returns all values.
  ValueSpan scratch(std::size_t parameter, Kind kind);

  /// The values after the last step.
  ValueSpan current_sender(std::size_t i) const { return current(i, kSender); }
  ValueSpan current_owner(std::size_t i) const { return current(i, kOwner); }
  ValueSpan current_memory(std::size_t i, std::size_t count) const {
    return current(i, kMemory).subspan(0, count);
  }
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
  void clear(std::size_t i, Kind kind) { clear(i, entries_[i].parts[kind]); }
  void scale(std::size_t parameter, float factor);
  void clear();

 private:
  /// Values within a generation.
  struct Part {
    std::size_t offset;  ///< bytes
    std::size_t count;
    Dtype dtype;
  };
  struct Entry {
    std::array<Part, 3> parts;        ///< by kind
    std::vector<Buffer> memory;       ///< by generation
    std::array<Buffer, 3> scratch{};  ///< by kind
    unsigned current = 0;
    bool pending = false;  ///< True if the other generation holds the values for `discard`
  };

  void clear(std::size_t parameter, const Part& part);
  /// Empty if the part has no values.
  ValueSpan values(std::size_t parameter, unsigned generation, const Part& part) const;
  ValueSpan current(std::size_t i, Kind kind) const {
    return values(i, entries_[i].current, entries_[i].parts[kind]);
  }
  ValueSpan written(std::size_t i, Kind kind) const {
    return values(i, next(entries_[i]), entries_[i].parts[kind]);
  }
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
