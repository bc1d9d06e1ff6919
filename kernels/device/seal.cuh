// The frame that a kernel writes: its header, and the checksum, which the warps add up as they
// write.
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

/// What a step in place of the header's adds to the header's own part of a checksum.
TERSOR_DEVICE std::uint64_t step_part(const FrameHeader& header, std::uint32_t step) {
  const auto value = [](std::uint32_t word) {
    return std::int64_t{static_cast<std::int32_t>(word)};
  };
  const std::uint32_t old = word_of(header, kStepWord);
  return step == old ? 0 : checksum_of_word(value(step) - value(old), kStepWord);
}

/// What a warp sums of a frame at a time, from a multiple of it on: parts of a group. Long pieces
/// cost less, if frames of `bytes` bytes have enough of them for all warps.
constexpr unsigned kShortPiece = 4096;
constexpr unsigned kLongPiece = 16384;
static_assert(kGroupBytes % kLongPiece == 0);
constexpr unsigned piece_bytes_of(std::size_t bytes) {
  return bytes >= std::size_t{1} << 26 ? kLongPiece : kShortPiece;
}

/// What this thread of a warp has of the piece at `begin` of a frame of `frame_bytes` bytes,
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

/// A frame's header. The first launch of a call writes it but, where there is a checksum, for the
/// words that are sums until the last block of the last launch puts there what belongs there. These
/// are zeros before the first launch, or are made so by it.
struct FrameSeal {
  std::byte* frame = nullptr;              // null: bare values, or written by another kernel
  FrameHeader header;                      // with its own part of the checksum
  bool is_first = false, is_last = false;  // launch of the call
  bool clears_sums = false;                // in the first launch, which adds nothing to them

  /// What is 0 before the first launch: the payload's parts, and a word that counts the blocks that
  /// are done.
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
  /// Whether the last block of this launch is to call `finish`.
  TERSOR_DEVICE bool closes() const { return has_checksum() && is_last; }

  template <class Block>
  TERSOR_DEVICE void write(const Block& block) const {
    write(block, word_of(header, kStepWord));
  }

  /// The same with a step, in place of the 0 that `header` has there.
  template <class Block>
  TERSOR_DEVICE void write(const Block& block, std::uint32_t step) const {
    const unsigned word = block.thread_rank();
    if (!is_first || block.rank() != 0 || word >= kHeaderWords) return;
    const bool is_sum = has_checksum() && word >= kFirstSum && word < kLastSum;
    if (is_sum && !clears_sums) return;
    store_word(word, word == kStepWord ? step : is_sum ? 0 : word_of(header, word));
  }

  /// In the last block: the words that were sums, and the checksum; a wrong one in a frame that
  /// nobody is to believe.
  template <class Block>
  TERSOR_DEVICE void finish(const Block& block, bool is_sound = true) const {
    if (block.thread_rank() != 0) return;
    FrameHeader sealed = header;
    sealed.checksum =
        add_checksums(add_checksums(header.checksum, part_of_step()), sums()->value());
    if (!is_sound) sealed.checksum = ~std::uint64_t{0};  // no sum, nor a bit or two from one
    for (unsigned word = kFirstSum; word < kLastSum; ++word)
      store_word(word, word_of(sealed, word));
    store_word(kChecksumWord, word_of(sealed, kChecksumWord));
    store_word(kChecksumWord + 1, word_of(sealed, kChecksumWord + 1));
  }

  /// A barrier, where this launch closes the frame.
  template <class Block>
  TERSOR_DEVICE void close(const Block& block) const {
    if (closes() && block.is_last(ticket())) finish(block);
  }

 private:
  static constexpr unsigned kFirstSum = sizeof(ChecksumParts) / sizeof(std::uint32_t);
  static constexpr unsigned kLastSum = kFirstSum + kSumsBytes / sizeof(std::uint32_t);
  static_assert(kLastSum <= kStepWord);

  /// Of the step that was written.
  TERSOR_DEVICE std::uint64_t part_of_step() const {
    return step_part(header, load_fresh(reinterpret_cast<const std::uint32_t*>(frame) + kStepWord));
  }

  TERSOR_DEVICE void store_word(unsigned word, std::uint32_t value) const {
    store(reinterpret_cast<std::uint32_t*>(frame) + word, value);
  }
};

/// Sums of a block's threads: in shared memory, since the work beside them needs the registers.
template <unsigned kThreads>
class ThreadSums {
 public:
  /// Before anything is added.
  TERSOR_DEVICE void clear(unsigned thread) { sum_.set(thread, 0); }
  TERSOR_DEVICE std::uint64_t get(unsigned thread) const { return sum_.get(thread); }
  TERSOR_DEVICE void add(unsigned thread, std::uint64_t sum) {
    sum_.set(thread, fold_number(sum_.get(thread) + sum));
  }
  /// What the threads of this rank have in all warps; behind a barrier.
  TERSOR_DEVICE std::uint64_t of_rank(unsigned thread) const {
    std::uint64_t sum = 0;
    TERSOR_KEEP_LOOP
    for (; thread < kThreads; thread += 32) sum = fold_number(sum + sum_.get(thread));
    return sum;
  }
  /// Behind a barrier: what all threads have is added to `parts`, by the first warp.
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

/// What a block adds to the checksum of the frame that it writes: its warps sum what they wrote
/// once more, from the caches, a run of units at a time. `kFours`: of sum_group.
template <class Block, unsigned kFours = 2>
class WrittenSum {
 public:
  using Sums = ThreadSums<Block::threads()>;

  TERSOR_DEVICE WrittenSum(const Block& block, const FrameSeal& seal, Sums& sums)
      : block_(block), seal_(seal), sums_(sums) {
    if (seal_.has_checksum()) sums_.clear(block_.thread_rank());
  }

  /// Bytes [begin, end) of the payload, multiples of 8: what all threads of the warp wrote before.
  TERSOR_DEVICE void add_bytes(std::size_t begin, std::size_t end) const {
    if (!seal_.has_checksum()) return;
    block_.warp().sync();
    begin += sizeof(FrameHeader);
    auto group = static_cast<std::uint32_t>(begin / kGroupBytes);
    auto first = static_cast<int>(begin % kGroupBytes);
    int last = first + static_cast<int>(end + sizeof(FrameHeader) - begin);
    constexpr int kGroup = kGroupBytes;
    TERSOR_KEEP_LOOP
    for (; first < last; ++group, first = 0, last -= kGroup) {
      sums_.add(block_.thread_rank(),
                sum_group<kFours>(seal_.frame, group, static_cast<unsigned>(first),
                                  static_cast<unsigned>(last < kGroup ? last : kGroup),
                                  block_.warp().thread_rank()));
    }
  }

  /// A barrier, once all is written: the frame's sums take what the block has.
  TERSOR_DEVICE void leave() const {
    if (!seal_.has_checksum()) return;
    block_.sync();
    sums_.add_to(block_, seal_.sums());
  }

 private:
  const Block& block_;
  const FrameSeal& seal_;
  Sums& sums_;
};

}  // namespace tersor::kernels
