// What all kernels of a codec's call carry: where its segments and frames lie, as tables in the
// kernel's parameters (nothing is copied to the device first, so a captured graph holds all it
// needs), and the words of the state.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/device/frames.cuh"
#include "kernels/device/memory.cuh"
#include "kernels/device/seal.cuh"

#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Kernel parameters hold 32,764 bytes: lists longer than this take several launches.
constexpr unsigned kMostSegments = 500;
/// Frames that one decode or reduce takes.
constexpr unsigned kMostFrames = kMostDeviceFrames;
/// Lists up to here have kernels whose parameters take less than the 4,096 bytes that every launch
/// has had room for, instead of up to 32,224, which the driver copies for each launch. In longer
/// ones a block's units follow each other (units.cuh).
constexpr unsigned kFewSegments = 48;
constexpr unsigned kFewFrames = 48;

/// Entries begin at their first unit: units are what a warp (or block) does at a time, numbered
/// through all segments.
struct EncodeEntry {
  const void* gradient;
  const void* residual_in;  // null: no feedback
  void* residual_out;
  const std::uint32_t* active;
  std::uint64_t count;
  std::uint64_t first_index;
  std::uint64_t offset;  // of the segment's sections, in bytes from the payload's beginning
  std::uint32_t parameter;
  std::uint32_t first_unit;
};
static_assert(sizeof(EncodeEntry) == 64);

TERSOR_DEVICE bool is_inactive(const EncodeEntry& segment) {
  return segment.active != nullptr && load(segment.active) == 0;
}

struct DecodeEntry {
  void* output;
  std::uint64_t count;
  std::uint64_t offset;
  std::uint32_t first_unit;
  std::uint32_t reserved;
};

struct ReduceEntry {
  const void* residual_in;
  void* residual_out;
  std::uint64_t count;
  std::uint64_t first_index;
  std::uint64_t offset;
  std::uint32_t parameter;
  std::uint32_t first_unit;
};

template <class Entry, unsigned kMost>
struct SegmentTable {
  static constexpr unsigned kEntries = kMost;
  static constexpr std::uint32_t kMostUnits = 1u << 31;  // sums with what is beyond them fit

  std::uint32_t entries = 0;
  std::uint32_t units = 0;
  std::uint32_t run = 1;  // units that a warp takes one behind the other
  Entry entry[kMost];

  void clear() { entries = units = 0; }

  /// Takes a segment of `units_of_it` units; false where the table is full.
  bool add(Entry next, std::size_t units_of_it) {
    if (entries == kMost || units_of_it > kMostUnits - units) return false;
    next.first_unit = units;
    entry[entries++] = next;
    units += static_cast<std::uint32_t>(units_of_it);
    return true;
  }

  /// The segment in which a unit lies.
  TERSOR_DEVICE const Entry& find(std::uint32_t unit) const { return entry[index_of(unit)]; }
  TERSOR_DEVICE unsigned index_of(std::uint32_t unit) const {
    unsigned low = 0, high = entries;  // it is in [low, high)
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      if (entry[middle].first_unit <= unit)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  /// The same where it is `index` or a little behind it.
  TERSOR_DEVICE unsigned index_from(unsigned index, std::uint32_t unit) const {
    while (index + 1 < entries && entry[index + 1].first_unit <= unit) ++index;
    return index;
  }
};

/// The words of a call: read where they lie, so that a replayed graph reads new ones.
struct CallWords {
  const StateWords* in = nullptr;  // null: factors 1 and `step`
  std::uint32_t step = 0;

  TERSOR_DEVICE std::uint32_t step_of() const { return in == nullptr ? step : load(&in->step); }
  TERSOR_DEVICE float gradient_factor() const {
    return in == nullptr ? 1.0f : load(&in->gradient_factor);
  }
  TERSOR_DEVICE float residual_factor() const {
    return in == nullptr ? 1.0f : load(&in->residual_factor);
  }
};

/// Adds what the threads of a warp counted; null: nowhere.
template <class Warp>
TERSOR_DEVICE void add_counts(const Warp& warp, unsigned count, std::uint64_t* total) {
  if (total == nullptr) return;
  const std::uint64_t sum = warp.sum(count);
  if (warp.thread_rank() == 0 && sum != 0) atomic_add(total, sum);
}

/// The next step's words, written by one thread of a launch in which nobody reads the step. In
/// place only the step changes. Overflows are added by whoever counts them.
struct NextWords {
  const StateWords* in = nullptr;
  StateWords* out = nullptr;  // null: the call advances nothing
  std::uint32_t step = 0;     // where `in` is null

  template <class Block>
  TERSOR_DEVICE void write(const Block& block) const {
    if (out == nullptr || block.rank() != 0 || block.thread_rank() != 0) return;
    store(&out->step, (in == nullptr ? step : load(&in->step)) + 1);
    if (in == out) return;
    store(&out->gradient_factor, in == nullptr ? 1.0f : load(&in->gradient_factor));
    store(&out->residual_factor, in == nullptr ? 1.0f : load(&in->residual_factor));
    store(&out->reserved, in == nullptr ? 0u : load(&in->reserved));
    if (in != nullptr) atomic_add(&out->overflows, load(&in->overflows));
  }
};

}  // namespace tersor::kernels
