// What all kernels of a codec's call carry: where its segments and frames lie, as tables in the
// kernel's parameters (nothing is copied to the device first, so a captured graph holds all it
// needs), the frame's header, and the words of the state.
#pragma once

#include "kernels/device/checksum.cuh"
#include "kernels/device/device_frame.h"
#include "kernels/device/memory.cuh"

#include <tersor/codec.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// In place of a residual's type: no feedback.
struct NoResidual {};

/// Kernel parameters hold 32,764 bytes: lists longer than this take several launches.
constexpr unsigned kMostSegments = 500;
/// Frames that one decode or reduce takes.
constexpr unsigned kMostFrames = kMostDeviceFrames;
/// Lists up to here have kernels whose parameters take less than the 4,096 bytes that every launch
/// has had room for, instead of up to 32,224, which the driver copies for each launch. The kernels
/// themselves are the same, instruction by instruction.
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

  std::uint32_t entries = 0;
  std::uint32_t units = 0;
  Entry entry[kMost];

  void clear() { entries = units = 0; }

  /// Takes a segment of `units_of_it` units; false where the table is full.
  bool add(Entry next, std::size_t units_of_it) {
    if (entries == kMost || units_of_it > 0xffffffffu - units) return false;
    next.first_unit = units;
    entry[entries++] = next;
    units += static_cast<std::uint32_t>(units_of_it);
    return true;
  }

  /// The segment in which a unit lies.
  TERSOR_DEVICE const Entry& find(std::uint32_t unit) const {
    unsigned low = 0, high = entries;  // it is in [low, high)
    while (high - low > 1) {
      const unsigned middle = (low + high) / 2;
      if (entry[middle].first_unit <= unit)
        low = middle;
      else
        high = middle;
    }
    return entry[low];
  }
};

constexpr unsigned kHeaderWords = sizeof(FrameHeader) / sizeof(std::uint32_t);
constexpr unsigned kStepWord = offsetof(FrameHeader, parameters) / sizeof(std::uint32_t);
constexpr unsigned kChecksumWord = offsetof(FrameHeader, checksum) / sizeof(std::uint32_t);

/// A frame's header. Without a checksum it is written with the payload. With one some of its words
/// are sums at first, to which whoever reads the payload adds, until the last block of that launch
/// writes what belongs there.
struct FrameSeal {
  std::byte* frame = nullptr;  // null: another launch writes it
  FrameHeader header;          // with its own part of the checksum

  /// Where the payload's parts are added; behind them a word counts the blocks that are done.
  TERSOR_BODY static ChecksumParts* sums_of(std::byte* frame) {
    return reinterpret_cast<ChecksumParts*>(frame) + 1;
  }

  template <class Block>
  TERSOR_DEVICE void write(const Block& block) const {
    write(block, word_of(header, kStepWord));
  }

  /// The same with a step, in place of the 0 that `header` has there.
  template <class Block>
  TERSOR_DEVICE void write(const Block& block, std::uint32_t step) const {
    const unsigned word = block.thread_rank();
    if (frame == nullptr || block.rank() != 0 || word >= kHeaderWords) return;
    const bool is_sum = has_checksum() && word >= kFirstSum && word < kLastSum;
    store_word(word, word == kStepWord ? step : is_sum ? 0 : word_of(header, word));
  }

  /// A barrier, where there is a frame: the last block writes the words that were sums, and the
  /// checksum.
  template <class Block>
  TERSOR_DEVICE void close(const Block& block) const {
    if (frame == nullptr) return;
    ChecksumParts* sums = sums_of(frame);
    if (!block.is_last(reinterpret_cast<std::uint32_t*>(sums + 1)) || block.thread_rank() != 0)
      return;
    FrameHeader sealed = header;
    sealed.checksum = add_checksums(add_checksums(header.checksum, step_part()), sums->value());
    for (unsigned word = kFirstSum; word < kLastSum; ++word)
      store_word(word, word_of(sealed, word));
    store_word(kChecksumWord, word_of(sealed, kChecksumWord));
    store_word(kChecksumWord + 1, word_of(sealed, kChecksumWord + 1));
  }

 private:
  static constexpr unsigned kFirstSum = sizeof(ChecksumParts) / sizeof(std::uint32_t);
  static constexpr unsigned kLastSum = 2 * kFirstSum + 1;
  static_assert(kLastSum <= kStepWord);

  TERSOR_DEVICE static std::uint32_t word_of(const FrameHeader& header, unsigned word) {
    return reinterpret_cast<const std::uint32_t*>(&header)[word];
  }

  TERSOR_DEVICE bool has_checksum() const { return (header.flags & kFrameHasChecksum) != 0; }

  /// What the step that was written adds to the header's own part.
  TERSOR_DEVICE std::uint64_t step_part() const {
    const std::uint32_t* step = reinterpret_cast<const std::uint32_t*>(frame) + kStepWord;
    if (load_fresh(step) == word_of(header, kStepWord)) return 0;
    return checksum_of_word(load_fresh(step), kStepWord);
  }

  TERSOR_DEVICE void store_word(unsigned word, std::uint32_t value) const {
    store(reinterpret_cast<std::uint32_t*>(frame) + word, value);
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

/// The frames that a call reads, and what each must say of itself. Whether it does is compared by
/// every block; a checksum was summed by an earlier launch.
template <unsigned kMost>
struct FrameList {
  static constexpr unsigned kFrames = kMost;

  FrameHeader expected;
  const ChecksumParts* checksums = nullptr;  // [frames], the payloads' part; null: not checked
  FrameFault* fault = nullptr;
  std::uint32_t frames = 0;
  std::uint32_t header_bytes = sizeof(FrameHeader);  // 0: bare values, of which nothing is known
  bool carries_step = false;  // the step is the first frame's, whatever `expected` says
  const std::byte* frame[kMost];

  TERSOR_DEVICE const std::byte* payload(unsigned index) const {
    return frame[index] + header_bytes;
  }

  /// The step that the first frame carries.
  TERSOR_DEVICE std::uint32_t carried_step() const {
    return load(reinterpret_cast<const std::uint32_t*>(frame[0]) + kStepWord);
  }

  /// A barrier; false where a frame is not what the call says.
  template <class Block>
  TERSOR_DEVICE bool check(const Block& block) const {
    if (header_bytes == 0) return true;
    bool wrong = false;
    for (unsigned i = block.thread_rank(); i < frames; i += block.threads())
      wrong |= !check_frame(i);
    return !block.any(wrong);
  }

  /// The first fault stays. Its kind comes last: who sees it sees the rest.
  TERSOR_DEVICE void report(unsigned index, std::uint32_t kind, std::uint64_t detail) const {
    if (fault == nullptr || atomic_add(&fault->times, 1u) != 0) return;
    store(&fault->frame, index);
    store(&fault->frames, frames);
    store(&fault->detail, detail);
    for (unsigned word = 0; word < kHeaderWords; ++word) {
      store(words_of(&fault->found) + word, load(words_of(frame[index]) + word));
      store(words_of(&fault->expected) + word, expected_word(word));
    }
    store_for_host(&fault->kind, kind);
  }

 private:
  template <typename T>
  TERSOR_DEVICE static const std::uint32_t* words_of(const T* pointer) {
    return reinterpret_cast<const std::uint32_t*>(pointer);
  }
  TERSOR_DEVICE static std::uint32_t* words_of(FrameHeader* pointer) {
    return reinterpret_cast<std::uint32_t*>(pointer);
  }

  TERSOR_DEVICE bool is_carried(unsigned word) const { return carries_step && word == kStepWord; }
  TERSOR_DEVICE std::uint32_t expected_word(unsigned word) const {
    return is_carried(word) ? carried_step() : words_of(&expected)[word];
  }

  TERSOR_DEVICE bool check_frame(unsigned index) const {
    std::uint64_t sum = 0;
    for (unsigned word = 0; word < kChecksumWord; ++word) {
      const std::uint32_t found = load(words_of(frame[index]) + word);
      sum = add_checksums(sum, checksum_of_word(found, word));
      if (found == expected_word(word)) continue;
      if (is_carried(word))
        report(index, FrameFault::kStep, carried_step());
      else
        report(index, FrameFault::kHeader, 0);
      return false;
    }
    const std::uint64_t claimed =
        load(words_of(frame[index]) + kChecksumWord) |
        static_cast<std::uint64_t>(load(words_of(frame[index]) + kChecksumWord + 1)) << 32;
    sum = checksums == nullptr ? 0 : add_checksums(sum, checksums[index].value());
    if (claimed == sum) return true;
    report(index, FrameFault::kChecksum, sum);
    return false;
  }
};

}  // namespace tersor::kernels
