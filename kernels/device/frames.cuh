// The frames read by a kernel. Kernels check that headers match the call, and the warps sum the
// payloads' checksums while reading.
#pragma once

#include "kernels/device/checksum.cuh"
#include "kernels/device/group.cuh"
#include "kernels/device/seal.cuh"
#include "kernels/scalar/convert.h"

#include <tersor/align.h>
#include <tersor/wire.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// Replaces the residual type if there is no feedback.
struct NoResidual {};

/// The frames that a call reads, and the expected header. Every block checks the headers before
/// reading payloads. If the call is a single launch, the launch sums checksums while reading, and
/// the last block compares them. Otherwise an earlier launch computes the sums.
template <unsigned kCapacity>
struct FrameList {
  FrameHeader expected;
  ChecksumParts* sums = nullptr;  // [frames], sums of the payloads; null: checksums are not checked
  FrameFault* fault = nullptr;
  std::uint64_t header_part = 0;  // the header's part of the checksum, with the step of `expected`
  // Pieces that a block sums per frame and round, times 2^32; 0: none.
  std::uint64_t pieces_per_round = 0;
  std::uint32_t pieces = 0;  // per frame, of piece_bytes each
  std::uint32_t piece_bytes = 0;
  std::uint32_t frames = 0;
  std::uint32_t header_bytes = sizeof(FrameHeader);  // 0: raw values without a header
  bool has_step = false;                             // True if the first frame defines the step
  bool are_summed = false;                           // True if an earlier launch computed the sums
  const std::byte* frame[kCapacity];

  TERSOR_DEVICE const std::byte* payload(unsigned index) const {
    return frame[index] + header_bytes;
  }

  /// Divides the summing equally among the blocks' `rounds` rounds, unless an earlier launch
  /// computed the sums.
  void distribute(std::size_t rounds) {
    if (sums == nullptr || are_summed) return;
    piece_bytes = frames > 1 ? piece_bytes_of(frames * frame_bytes()) : kShortPiece;
    pieces = static_cast<std::uint32_t>(ceil_div(frame_bytes(), std::size_t{piece_bytes}));
    pieces_per_round = ceil_div(std::uint64_t{pieces} << 32, std::max<std::size_t>(rounds, 1));
  }

  /// Size of header and payload.
  TERSOR_BODY std::size_t frame_bytes() const {
    return sizeof(FrameHeader) + expected.payload_bytes;
  }

  /// Returns the step in the first frame's header.
  TERSOR_DEVICE std::uint32_t step_in_header() const {
    return load(reinterpret_cast<const std::uint32_t*>(frame[0]) + kStepWord);
  }

  /// True if all frames match the call as far as checked. A barrier.
  template <class Block>
  TERSOR_DEVICE bool check(const Block& block) const {
    if (header_bytes == 0) return true;
    bool wrong = false;
    for (unsigned i = block.thread_rank(); i < frames; i += block.threads())
      wrong |= !check_header(i) || (are_summed && !check_sum(i));
    return !block.any(wrong);
  }

  /// True if a checksum is wrong. A barrier. Call only in the last block.
  template <class Block>
  TERSOR_DEVICE bool is_damaged(const Block& block) const {
    bool wrong = false;
    for (unsigned i = block.thread_rank(); i < frames; i += block.threads()) wrong |= !check_sum(i);
    return block.any(wrong);
  }

  /// Counter of finished blocks, stored after the sums.
  TERSOR_DEVICE std::uint32_t* ticket() const {
    return reinterpret_cast<std::uint32_t*>(sums + frames);
  }

  /// Records a fault. Only the first fault is kept. The kind is stored last, so a reader of the
  /// kind also sees the other fields.
  TERSOR_DEVICE void report(unsigned index, std::uint32_t kind, std::uint64_t detail) const {
    if (fault == nullptr || atomic_add(&fault->times, 1u) != 0) return;
    store(&fault->frame, index);
    store(&fault->frames, frames);
    store(&fault->detail, detail);
    TERSOR_KEEP_LOOP
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

  TERSOR_DEVICE bool is_in_header(unsigned word) const { return has_step && word == kStepWord; }
  TERSOR_DEVICE std::uint32_t expected_word(unsigned word) const {
    return is_in_header(word) ? step_in_header() : words_of(&expected)[word];
  }

  TERSOR_DEVICE bool check_header(unsigned index) const {
    TERSOR_KEEP_LOOP
    for (unsigned word = 0; word < kChecksumWord; ++word) {
      if (load(words_of(frame[index]) + word) == expected_word(word)) continue;
      if (is_in_header(word))
        report(index, FrameFault::kStep, step_in_header());
      else
        report(index, FrameFault::kHeader, 0);
      return false;
    }
    if (sums != nullptr || claimed(index) == 0) return true;
    report(index, FrameFault::kChecksum, 0);
    return false;
  }

  /// True if the payload's checksum and the expected header's checksum give the claimed checksum.
  TERSOR_DEVICE bool check_sum(unsigned index) const {
    std::uint64_t sum = add_checksums(sums[index].value(), header_part);
    if (has_step) sum = add_checksums(sum, step_part(expected, step_in_header()));
    if (claimed(index) == sum) return true;
    report(index, FrameFault::kChecksum, sum);
    return false;
  }

  TERSOR_DEVICE std::uint64_t claimed(unsigned index) const {
    return load(words_of(frame[index]) + kChecksumWord) |
           static_cast<std::uint64_t>(load(words_of(frame[index]) + kChecksumWord + 1)) << 32;
  }
};

/// A block's contribution to the checksums of the frames read by the block. Each round, the block
/// reads about `pieces_per_round` pieces of each frame. The warps then sum about the same pieces
/// from a cache, in turn. Thread i of each warp holds the sum of frame i. A single frame is summed
/// by all threads, and each thread holds a part of the sum.
template <class Block, class List>
class ReadSums {
 public:
  using Sums = ThreadSums<Block::threads()>;

  TERSOR_DEVICE ReadSums(const Block& block, const List& list, bool is_valid, Sums& sums)
      : block_(block), list_(list), is_valid_(is_valid), sums_(sums) {
    if (is_enabled()) sums_.clear(block_.thread_rank());
  }

  /// True if this block sums the only frame. Then kernels can add the frame's words while they hold
  /// them, instead of calling add_round.
  TERSOR_DEVICE bool is_single() const { return is_enabled() && list_.frames == 1; }

  /// Adds a sum of this thread to the sum of the only frame.
  TERSOR_DEVICE void add(std::uint64_t sum) const { sums_.add(block_.thread_rank(), sum); }

  /// Adds the bytes [begin, end) of the only frame's payload, multiples of 8. Call in one warp.
  TERSOR_DEVICE void add_bytes(std::size_t begin, std::size_t end) const {
    sum_payload<2>(list_.frame[0], begin, end, block_.warp().thread_rank(),
                   [&](std::uint64_t sum) { add(sum); });
  }

  /// Sums the pieces of round `round` of the launch, which is round number `iteration` of this
  /// block.
  TERSOR_DEVICE void add_round(std::uint32_t round, unsigned iteration) const {
    if (!is_enabled()) return;
    const auto pieces_before = [&](std::uint64_t rounds) {
      return static_cast<std::uint32_t>(rounds * list_.pieces_per_round >> 32);
    };
    for (std::uint32_t piece = pieces_before(round);
         piece < pieces_before(std::uint64_t{round} + 1) && piece < list_.pieces; ++piece) {
      for (unsigned index = 0; index < list_.frames; ++index) {
        if (iteration++ % Block::warps() == block_.warp_rank()) add_piece(index, piece);
      }
    }
  }

  /// Adds the block's sums to the launch's sums. Call after all rounds. A barrier. True if the last
  /// block must check the sums.
  TERSOR_DEVICE bool flush() const {
    if (!is_enabled()) return false;
    block_.sync();
    const unsigned thread = block_.thread_rank();
    if (list_.frames == 1)
      sums_.add_to(block_, list_.sums);
    else if (thread < kWarpThreads && thread < list_.frames)
      list_.sums[thread].add(sums_.of_rank(thread));
    return true;
  }

 private:
  TERSOR_DEVICE bool is_enabled() const { return is_valid_ && list_.pieces_per_round != 0; }

  TERSOR_DEVICE void add_piece(unsigned index, std::uint32_t piece) const {
    const auto warp = block_.warp();
    std::uint64_t sum =
        sum_piece(list_.frame[index], list_.frame_bytes(), std::size_t{piece} * list_.piece_bytes,
                  list_.piece_bytes, warp.thread_rank());
    if (list_.frames == 1) return add(sum);
    sum = sum_of_warp(warp, sum);
    if (warp.thread_rank() != index % kWarpThreads) return;
    if (index < kWarpThreads)
      sums_.add(block_.thread_rank(), sum);
    else
      list_.sums[index].add(sum);
  }

  const Block& block_;
  const List& list_;
  bool is_valid_;
  Sums& sums_;
};

/// Fills all values of all segments with NaN, because a damaged frame was read. Called in the last
/// block of a launch. The values of a segment have type T and start at pointer_of(segment).
template <typename T, class Block, class Table, class PointerOf>
TERSOR_DEVICE void fill_nan(const Block& block, const Table& table, const PointerOf& pointer_of) {
  for (unsigned i = 0; i < table.entries; ++i) {
    auto* values = static_cast<T*>(pointer_of(table.entry[i]));
    for (std::size_t at = block.thread_rank(); at < table.entry[i].count; at += block.threads())
      store(values + at, from_f32<T>(float_of(kNanBits)));
  }
}

/// Ends a decoding kernel. After all blocks are done, the last block checks the checksums.
template <typename T, class Block, class Table, class Sums, class List>
TERSOR_DEVICE void close_decoded(const Block& block, const Table& table, const Sums& sums,
                                 const List& list) {
  if (!sums.flush() || !block.is_last(list.ticket()) || !list.is_damaged(block)) return;
  fill_nan<T>(block, table, [](const auto& segment) { return segment.output; });
}

/// Ends a reducing kernel. If an input frame is damaged, the reduced frame receives a wrong
/// checksum, so no rank accepts the frame.
template <typename E, class Block, class Table, class Sums, class List>
TERSOR_DEVICE void close_reduced(const Block& block, const Table& table, const Sums& sums,
                                 const List& list, const FrameSeal& seal) {
  const bool must_check = sums.flush();
  if (!seal.closes() || !block.is_last(seal.ticket())) return;
  const bool damaged = must_check && list.is_damaged(block);
  seal.finish(block, !damaged);
  if constexpr (!std::is_same_v<E, NoResidual>) {
    if (damaged)
      fill_nan<E>(block, table, [](const auto& segment) { return segment.residual_out; });
  }
}

}  // namespace tersor::kernels
