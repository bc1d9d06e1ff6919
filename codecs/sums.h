// Checksums of payloads, summed piece by piece while a piece is in the L1 cache: before a read,
// after a write. Also the handling of frames found damaged after they were read.
#pragma once

#include "codecs/calls.h"
#include "codecs/frame.h"
#include "codecs/slices.h"
#include "kernels/host/arguments.h"

#include <tersor/align.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

namespace tersor::encoding {

/// Bytes of a payload encoded and summed at a time.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 15;

/// Calls visit(piece) for pieces of `count` values of a slice.
template <typename Visitor>
void for_each_piece(const Slice& slice, std::size_t count, const Visitor& visit) {
  for (std::size_t first = 0; first < slice.count; first += count) {
    Slice piece = slice;
    piece.first += first;
    piece.count = std::min(count, slice.count - first);
    piece.is_last = slice.is_last && first + piece.count == slice.count;
    visit(piece);
  }
}

/// A call's output frame while pieces are written: its payload, its sum, and the state words of
/// this step and the next step.
class FrameWriter {
 public:
  /// `input_bytes` is the size of the call's input. `large` selects how payloads larger than the
  /// caches are written; residuals of such calls always bypass the caches.
  template <class Call>  // EncodeCall or ReduceCall
  FrameWriter(const Call& call, ByteSpan frame, std::size_t input_bytes,
              kernels::Store large = kernels::Store::kStreaming)
      : payload(payload_of(frame)),
        store(store_for(frame.size() + input_bytes)),
        words(words_of(call)),
        frame_(frame),
        has_checksum_(call.identity.checksum == Checksum::kOn),
        sums_pieces_(has_checksum_ && std::min(store, large) == kernels::Store::kCached),
        words_out_(call.words_out) {}

  const ByteSpan payload;
  const kernels::Store store;
  const StateWords words;

  /// True if written bytes are summed while still in the cache.
  bool sums_pieces() const { return sums_pieces_; }

  /// Sums the written words [begin, end), in bytes.
  void add(std::size_t begin, std::size_t end) {
    if (has_checksum_ && !is_short(payload.size()))
      sum_.add(payload.data() + begin, begin, end - begin);
  }

  /// Calls write(target, words) to write the first `count` bytes of [begin, end); the rest is
  /// zeros. If stores bypass the caches, the writer sums the bytes in `words`; otherwise `words` is
  /// null. Returns the offset from which the caller must add the bytes.
  template <typename Write>
  std::size_t write(std::size_t begin, std::size_t end, std::size_t count, const Write& write) {
    kernels::StreamedWords words{.first = (sizeof(FrameHeader) + begin) / sizeof(std::uint32_t)};
    const bool streams = has_checksum_ && !sums_pieces_;
    write(payload.data() + begin, streams ? &words : nullptr);
    pad_section(payload, begin + count, end);
    if (!streams) return begin;
    sum_.add(words.sum);
    return begin + align_down(count, sizeof(std::uint32_t));
  }

  /// Counts finite values that became infinite.
  void add_overflows(std::size_t count) {
    if (count != 0) overflows_ += count;
  }

  /// Writes the header and the next step's words. Call `seal` after all pieces.
  void seal(const FrameHeader& header) const {
    seal_frame(header, frame_, sum_);
    write_words(words, overflows_, words_out_);
  }

 private:
  const ByteSpan frame_;
  const bool has_checksum_;
  const bool sums_pieces_;
  StateWords* const words_out_;
  PayloadSum sum_;
  std::atomic<std::uint64_t> overflows_{0};
};

/// When frames are summed: before any read, or during the reads.
enum class SumTiming { kBeforeReads, kDuringReads };

/// A call with kAdd must not damage its outputs. Frames are therefore summed before any write.
inline bool sums_before_reads(const DecodeCall& call) { return call.mode == DecodeMode::kAdd; }
inline bool sums_before_reads(const ReduceCall&) { return false; }

/// The sums of a call's input frames: on the stack, or for many frames at the start of the
/// workspace. Without checksums, nothing is summed.
class FrameSums {
 public:
  /// Returns the workspace bytes for `frames` frames.
  static constexpr std::size_t workspace_bytes(std::size_t frames) {
    return frames <= kInlineFrames ? 0 : align_up(frames * sizeof(PayloadSum), kWorkspaceAlignment);
  }

  /// Throws WireError if frames are summed first and a checksum is wrong.
  template <class Call>  // DecodeCall or ReduceCall
  FrameSums(const Call& call, SumTiming timing)
      : frames_(call.frames),
        is_enabled_(call.identity.checksum == Checksum::kOn && timing == SumTiming::kDuringReads &&
                    !sums_before_reads(call)),
        sums_(reinterpret_cast<PayloadSum*>(
            frames_.size() <= kInlineFrames ? inline_sums_ : call.execution.workspace.data())) {
    if (is_enabled_)
      std::uninitialized_default_construct_n(sums_, frames_.size());
    else if (call.identity.checksum == Checksum::kOn)
      check_checksums(frames_, call.execution.threads);
  }
  FrameSums(const FrameSums&) = delete;
  FrameSums& operator=(const FrameSums&) = delete;

  /// True if pieces must be summed during the reads.
  bool is_enabled() const { return is_enabled_; }

  /// Sums the words [begin, end) of all payloads, in bytes.
  void add(std::size_t begin, std::size_t end) {
    if (!is_enabled_) return;
    for (std::size_t i = 0; i < frames_.size(); ++i)
      if (const ConstByteSpan payload = payload_of(frames_[i]); !is_short(payload.size()))
        sums_[i].add(payload.data() + begin, begin, end - begin);
  }

  /// Call this after all `add` calls. If a checksum is wrong, calls `poison` and throws WireError.
  template <typename Poison>
  void check(const Poison& poison) const {
    if (!is_enabled_) return;
    try {
      check_checksums(frames_, {sums_, frames_.size()});
    } catch (const WireError&) {
      poison();
      throw;
    }
  }

 private:
  static constexpr std::size_t kInlineFrames = 64;
  static_assert(std::is_trivially_destructible_v<PayloadSum>);  // never destroyed

  const std::span<const ConstByteSpan> frames_;
  const bool is_enabled_;
  // Uninitialised memory.
  alignas(PayloadSum) std::byte inline_sums_[kInlineFrames * sizeof(PayloadSum)];
  PayloadSum* const sums_;
};

/// Sets all values to `value`, rounded to the dtype.
void fill(const ValueSpan& values, float value);

/// Sets all values to NaN, after a frame was found damaged.
void poison(std::span<const ValueSpan> outputs);
void poison(std::span<const SegmentState> states);

}  // namespace tersor::encoding
