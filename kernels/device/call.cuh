// The arguments shared by all kernels of a codec's call: tables of segments and frames in the
// kernel's parameters, and the words of the state. Nothing is copied to the device first, so a
// captured graph is self-contained.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/device/frames.cuh"
#include "kernels/device/memory.cuh"
#include "kernels/device/seal.cuh"

#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Longer lists take several launches, because kernel parameters hold at most 32,764 bytes.
constexpr unsigned kMaxSegments = 500;
/// Maximum number of frames per decode or reduce.
constexpr unsigned kMaxFrames = kMaxDeviceFrames;
/// Lists up to these lengths use kernels with less than 4,096 bytes of parameters. Every CUDA
/// version supports this size. Kernels for longer lists have up to 32,448 bytes of parameters, and
/// the driver copies the parameters for each launch. A block of a kernel for longer lists processes
/// consecutive units (units.cuh).
constexpr unsigned kShortListSegments = 48;
constexpr unsigned kShortListFrames = 48;

/// Table entries. A unit is the work of a warp (or block) at a time. Units are numbered through all
/// segments, and `first_unit` is a segment's first unit.
struct EncodeEntry {
  const void* gradient;
  const void* residual_in;  // null: no feedback
  void* residual_out;
  const std::uint32_t* active;
  std::uint64_t count;
  std::uint64_t first_index;
  std::uint64_t offset;  // of the segment's sections, in bytes from the start of the payload
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
  std::uint32_t parameter;
  std::uint32_t first_unit;
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

template <class Entry, unsigned kCapacity>
struct SegmentTable {
  static constexpr unsigned kEntries = kCapacity;
  static constexpr std::uint32_t kMaxUnits = 1u << 31;  // leaves headroom for sums of unit numbers
  static constexpr unsigned kHints = kCapacity > kShortListSegments ? 64 : 1;

  std::uint32_t entries = 0;
  std::uint32_t units = 0;
  std::uint32_t run = 1;          // consecutive units per warp
  std::uint32_t hint_shift = 31;  // hint i: the index of the entry of unit i << hint_shift
  std::uint16_t hint[kHints + 1] = {};
  Entry entry[kCapacity];

  void clear() { entries = units = 0; }

  /// Adds a segment of `unit_count` units. Returns false if the table is full.
  bool add(Entry next, std::size_t unit_count) {
    if (entries == kCapacity || unit_count > kMaxUnits - units) return false;
    next.first_unit = units;
    entry[entries++] = next;
    units += static_cast<std::uint32_t>(unit_count);
    return true;
  }

  /// Sets the hints, which shorten searches to a few loads. Call before a launch, unless the table
  /// has a single entry.
  void set_hints() {
    const std::uint32_t last = units == 0 ? 0 : units - 1;
    for (hint_shift = 0; last >> hint_shift >= kHints;) ++hint_shift;
    for (unsigned i = 0, index = 0; i <= kHints; ++i) {
      const std::uint64_t unit = std::uint64_t{i} << hint_shift;
      while (index + 1 < entries && entry[index + 1].first_unit <= unit) ++index;
      hint[i] = static_cast<std::uint16_t>(index);
    }
  }

  /// Returns the segment of a unit.
  TERSOR_DEVICE const Entry& find(std::uint32_t unit) const { return entry[index_of(unit)]; }
  TERSOR_DEVICE unsigned index_of(std::uint32_t unit) const {
    const std::uint16_t* hints = hint + (unit >> hint_shift);
    unsigned low = hints[0], high = hints[1] + 1u;  // the index is in [low, high)
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      if (entry[middle].first_unit <= unit)
        low = middle;
      else
        high = middle;
    }
    return low;
  }
  /// Like index_of, if the result is `index` or slightly larger.
  TERSOR_DEVICE unsigned index_from(unsigned index, std::uint32_t unit) const {
    while (index + 1 < entries && entry[index + 1].first_unit <= unit) ++index;
    return index;
  }
};

/// The state words of a call. Kernels read the words from memory, so a replayed graph sees new
/// words.
struct CallWords {
  const StateWords* in = nullptr;  // null: both factors are 1, and the step is `step`
  std::uint32_t step = 0;

  TERSOR_DEVICE std::uint32_t step_of() const { return in == nullptr ? step : load(&in->step); }
  TERSOR_DEVICE float gradient_factor() const {
    return in == nullptr ? 1.0f : load(&in->gradient_factor);
  }
  TERSOR_DEVICE float residual_factor() const {
    return in == nullptr ? 1.0f : load(&in->residual_factor);
  }
};

/// Adds the counts of a warp's threads to *total. A null `total` discards the counts.
template <class Warp>
TERSOR_DEVICE void add_counts(const Warp& warp, unsigned count, std::uint64_t* total) {
  if (total == nullptr) return;
  const std::uint64_t sum = warp.sum(count);
  if (warp.thread_rank() == 0 && sum != 0) atomic_add(total, sum);
}

/// The next step's words, written by one thread of a launch in which no thread reads the step. If
/// in == out, only the step changes. Kernels that detect overflows add to the overflow counter.
struct NextWords {
  const StateWords* in = nullptr;
  StateWords* out = nullptr;  // null: the call advances nothing
  std::uint32_t step = 0;     // used if `in` is null

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
