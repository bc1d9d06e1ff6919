// The frame written by a kernel: the header, and the checksum that the warps sum while writing.
#pragma once

#include "kernels/device/checksum.cuh"

#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kHeaderWords = sizeof(FrameHeader) / sizeof(std::uint32_t);
constexpr unsigned kStepWord = offsetof(FrameHeader, parameters) / sizeof(std::uint32_t);
constexpr unsigned kChecksumWord = offsetof(FrameHeader, checksum) / sizeof(std::uint32_t);
static_assert(sizeof(FrameHeader) == kRowBytes);

TERSOR_DEVICE std::uint32_t word_of(const FrameHeader& header, unsigned word) {
  return reinterpret_cast<const std::uint32_t*>(&header)[word];
}

/// Returns the checksum difference if the header contains `step` instead of its own step.
TERSOR_DEVICE std::uint64_t step_part(const FrameHeader& header, std::uint32_t step) {
  const auto value = [](std::uint32_t word) {
    return std::int64_t{static_cast<std::int32_t>(word)};
  };
  const std::uint32_t old = word_of(header, kStepWord);
  return step == old ? 0 : checksum_of_word(value(step) - value(old), kStepWord);
}

/// The number of bytes of a frame that a warp sums at a time, starting at a multiple of that
/// number. A piece is part of a group. Long pieces cost less, if frames of `bytes` bytes have
/// enough pieces for all warps.
constexpr unsigned kShortPiece = 4096;
constexpr unsigned kLongPiece = 16384;
static_assert(kGroupBytes % kLongPiece == 0);
constexpr unsigned piece_bytes_of(std::size_t bytes) {
  return bytes >= std::size_t{1} << 26 ? kLongPiece : kShortPiece;
}

/// Returns this thread's part of the sum of the piece at `begin` of a frame of `frame_bytes` bytes,
/// without the header.
TERSOR_DEVICE std::uint64_t sum_piece(const std::byte* frame, std::size_t frame_bytes,
                                      std::size_t begin, unsigned piece_bytes, unsigned thread) {
  const std::size_t left = frame_bytes - begin;
  const auto first = static_cast<unsigned>(begin % kGroupBytes);
  return sum_group(frame, static_cast<std::uint32_t>(begin / kGroupBytes),
                   begin == 0 ? sizeof(FrameHeader) : first,
                   first + (left < piece_bytes ? static_cast<unsigned>(left) : piece_bytes),
                   thread);
}

/// Calls add(sum) with this thread's sums over the bytes [begin, end) of a frame's payload,
/// multiples of 8. `kQuads` is passed to sum_group.
template <unsigned kQuads, class Add>
TERSOR_DEVICE void sum_payload(const std::byte* frame, std::size_t begin, std::size_t end,
                               unsigned thread, const Add& add) {
  begin += sizeof(FrameHeader);
  auto group = static_cast<std::uint32_t>(begin / kGroupBytes);
  auto first = static_cast<int>(begin % kGroupBytes);
  int last = first + static_cast<int>(end + sizeof(FrameHeader) - begin);
  constexpr int kGroup = kGroupBytes;
  TERSOR_KEEP_LOOP
  for (; first < last; ++group, first = 0, last -= kGroup)
    add(sum_group<kQuads>(frame, group, static_cast<unsigned>(first),
                          static_cast<unsigned>(last < kGroup ? last : kGroup), thread));
}

/// A frame's header. The first launch of a call writes the header. If the frame has a checksum,
/// some header words hold sums until the last block of the last launch writes their final content.
/// These words are zeroed before the first launch or by the first launch.
struct FrameSeal {
  std::byte* frame = nullptr;              // null: raw values, or written by another kernel
  FrameHeader header;                      // includes the header's own part of the checksum
  bool is_first = false, is_last = false;  // position of the launch in the call
  bool clears_sums = false;  // True if the first launch zeroes the sums and adds nothing

  /// Size of the data that is zero before the first launch: the payload's sums and a counter of
  /// finished blocks.
  static constexpr std::size_t kSumsBytes = sizeof(ChecksumParts) + sizeof(std::uint32_t);
  TERSOR_BODY static ChecksumParts* sums_of(std::byte* frame) {
    return reinterpret_cast<ChecksumParts*>(frame) + 1;
  }
  TERSOR_DEVICE ChecksumParts* sums() const { return sums_of(frame); }
  TERSOR_DEVICE std::uint32_t* ticket() const {
    return reinterpret_cast<std::uint32_t*>(sums() + 1);
  }

  TERSOR_BODY bool has_checksum() const {
    return frame != nullptr && (header.flags & kFrameHasChecksum) != 0;
  }
  /// True if the last block of this launch must call `finish`.
  TERSOR_DEVICE bool closes() const { return has_checksum() && is_last; }

  template <class Block>
  TERSOR_DEVICE void write(const Block& block) const {
    write(block, word_of(header, kStepWord));
  }

  /// Writes the header with `step` instead of the 0 in `header`.
  template <class Block>
  TERSOR_DEVICE void write(const Block& block, std::uint32_t step) const {
    const unsigned word = block.thread_rank();
    if (!is_first || block.rank() != 0 || word >= kHeaderWords) return;
    const bool is_sum = has_checksum() && word >= kFirstSum && word < kLastSum;
    if (is_sum && !clears_sums) return;
    store_word(word, word == kStepWord ? step : is_sum ? 0 : word_of(header, word));
  }

  /// Writes the checksum and restores the words that held sums. For the last block. If `is_valid`
  /// is false, the checksum is wrong, so no rank accepts the frame.
  template <class Block>
  TERSOR_DEVICE void finish(const Block& block, bool is_valid = true) const {
    if (block.thread_rank() != 0) return;
    FrameHeader sealed = header;
    sealed.checksum =
        add_checksums(add_checksums(header.checksum, part_of_step()), sums()->value());
    if (!is_valid) sealed.checksum = ~std::uint64_t{0};  // not the sum with a few flipped bits
    for (unsigned word = kFirstSum; word < kLastSum; ++word)
      store_word(word, word_of(sealed, word));
    store_word(kChecksumWord, word_of(sealed, kChecksumWord));
    store_word(kChecksumWord + 1, word_of(sealed, kChecksumWord + 1));
  }

  /// Finishes the frame if this launch closes the frame. A barrier in that case.
  template <class Block>
  TERSOR_DEVICE void close(const Block& block) const {
    if (closes() && block.is_last(ticket())) finish(block);
  }

 private:
  static constexpr unsigned kFirstSum = sizeof(ChecksumParts) / sizeof(std::uint32_t);
  static constexpr unsigned kLastSum = kFirstSum + kSumsBytes / sizeof(std::uint32_t);
  static_assert(kLastSum <= kStepWord);

  /// The part of the written step.
  TERSOR_DEVICE std::uint64_t part_of_step() const {
    return step_part(header, load_fresh(reinterpret_cast<const std::uint32_t*>(frame) + kStepWord));
  }

  TERSOR_DEVICE void store_word(unsigned word, std::uint32_t value) const {
    store(reinterpret_cast<std::uint32_t*>(frame) + word, value);
  }
};

/// Sums of a block's threads. Stored in shared memory, because the rest of the kernel needs the
/// registers.
template <unsigned kThreads>
class ThreadSums {
 public:
  /// Call before adding.
  TERSOR_DEVICE void clear(unsigned thread) { sum_.set(thread, 0); }
  TERSOR_DEVICE std::uint64_t get(unsigned thread) const { return sum_.get(thread); }
  TERSOR_DEVICE void add(unsigned thread, std::uint64_t sum) {
    sum_.set(thread, fold_number(sum_.get(thread) + sum));
  }
  /// Returns the sum over the threads of this rank in all warps. Call after a barrier.
  TERSOR_DEVICE std::uint64_t of_rank(unsigned thread) const {
    std::uint64_t sum = 0;
    TERSOR_KEEP_LOOP
    for (; thread < kThreads; thread += 32) sum = fold_number(sum + sum_.get(thread));
    return sum;
  }
  /// Adds the sums of all threads to `parts`, in the first warp. Call after a barrier.
  template <class Block>
  TERSOR_DEVICE void add_to(const Block& block, ChecksumParts* parts) const {
    if (block.warp_rank() != 0) return;
    const unsigned thread = block.thread_rank();
    const std::uint64_t sum = sum_of_warp(block.warp(), of_rank(thread));
    if (thread == 0) parts->add(sum);
  }

 private:
  SharedArray<std::uint64_t, kThreads> sum_;
};

/// A block's contribution to the checksum of the written frame. The warps read their own writes
/// back from the caches and sum them, a run of units at a time. `kQuads` is passed to sum_group.
template <class Block, unsigned kQuads = 2>
class WrittenSum {
 public:
  using Sums = ThreadSums<Block::threads()>;

  TERSOR_DEVICE WrittenSum(const Block& block, const FrameSeal& seal, Sums& sums)
      : block_(block), seal_(seal), sums_(sums) {
    if (seal_.has_checksum()) sums_.clear(block_.thread_rank());
  }

  TERSOR_DEVICE bool is_enabled() const { return seal_.has_checksum(); }

  /// Adds a sum of this thread.
  TERSOR_DEVICE void add(std::uint64_t sum) const { sums_.add(block_.thread_rank(), sum); }

  /// Adds the bytes [begin, end) of the payload, multiples of 8, previously written by the warp's
  /// threads.
  TERSOR_DEVICE void add_bytes(std::size_t begin, std::size_t end) const {
    if (!is_enabled()) return;
    block_.warp().sync();
    sum_payload<kQuads>(seal_.frame, begin, end, block_.warp().thread_rank(),
                        [&](std::uint64_t sum) { add(sum); });
  }

  /// Adds the block's sums to the frame's sums. Call after all writes. A barrier.
  TERSOR_DEVICE void flush() const {
    if (!is_enabled()) return;
    block_.sync();
    sums_.add_to(block_, seal_.sums());
  }

 private:
  const Block& block_;
  const FrameSeal& seal_;
  Sums& sums_;
};

}  // namespace tersor::kernels
