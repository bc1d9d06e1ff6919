// Checksums of payloads that are summed piece by piece, while a piece is in the first caches:
// before it is read, after it is written. And what becomes of calls whose frames turn out to be
// damaged when they have been read.
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

/// Bytes of one payload that are coded, and summed, at a time.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 15;

/// Calls visit(piece) for a slice's pieces of `count` values each.
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

/// A call's own frame while pieces of it are written: its payload, its sum, and the words of the
/// state, those of this step and of the next.
class FrameWriter {
 public:
  /// Of a frame that is made of `input_bytes` bytes. `large` is how payloads are written that are
  /// larger than the caches; residuals of such calls always go past them.
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

  /// Whether what is written is summed while it is in the cache.
  bool sums_pieces() const { return sums_pieces_; }

  /// Sums the words [begin, end), in bytes, that have been written.
  void add(std::size_t begin, std::size_t end) {
    if (has_checksum_ && !is_short(payload.size()))
      sum_.add(payload.data() + begin, begin, end - begin);
  }

  /// Has write(target, words) write the first `count` bytes of [begin, end), of which the rest is
  /// zeros. What goes past the caches is summed by who writes it: `words`, or null. From where on
  /// the caller is to add them.
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

  /// Finite values that became something else.
  void add_overflows(std::size_t count) {
    if (count != 0) overflows_ += count;
  }

  /// After all pieces.
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

/// When frames are summed: before anything of them is read, or while it is.
enum class Summed { kFirst, kMeanwhile };

/// What a call adds to is worth keeping: its frames are summed before anything is written.
inline bool sums_first(const DecodeCall& call) { return call.mode == DecodeMode::kAdd; }
inline bool sums_first(const ReduceCall&) { return false; }

/// The sums of the frames that a call reads: on the stack, or where they are many, where its
/// workspace begins. Without checksums nothing is summed.
class FrameSums {
 public:
  /// Bytes of workspace for `frames` frames.
  static constexpr std::size_t workspace_bytes(std::size_t frames) {
    return frames <= kOnStack ? 0 : align_up(frames * sizeof(PayloadSum), kWorkspaceAlignment);
  }

  /// Throws WireError where frames are summed first and a checksum is another.
  template <class Call>  // DecodeCall or ReduceCall
  FrameSums(const Call& call, Summed summed)
      : frames_(call.frames),
        is_on_(call.identity.checksum == Checksum::kOn && summed == Summed::kMeanwhile &&
               !sums_first(call)),
        sums_(reinterpret_cast<PayloadSum*>(
            frames_.size() <= kOnStack ? few_ : call.execution.workspace.data())) {
    if (is_on_)
      std::uninitialized_default_construct_n(sums_, frames_.size());
    else if (call.identity.checksum == Checksum::kOn)
      check_checksums(frames_, call.execution.threads);
  }
  FrameSums(const FrameSums&) = delete;
  FrameSums& operator=(const FrameSums&) = delete;

  /// Whether pieces are to be summed where they are read.
  bool is_on() const { return is_on_; }

  /// The words [begin, end) of all payloads, in bytes.
  void add(std::size_t begin, std::size_t end) {
    if (!is_on_) return;
    for (std::size_t i = 0; i < frames_.size(); ++i)
      if (const ConstByteSpan payload = payload_of(frames_[i]); !is_short(payload.size()))
        sums_[i].add(payload.data() + begin, begin, end - begin);
  }

  /// After all have added. Throws WireError where a checksum is another; `poison` is called then.
  template <typename Poison>
  void check(const Poison& poison) const {
    if (!is_on_) return;
    try {
      check_checksums(frames_, {sums_, frames_.size()});
    } catch (const WireError&) {
      poison();
      throw;
    }
  }

 private:
  static constexpr std::size_t kOnStack = 64;
  static_assert(std::is_trivially_destructible_v<PayloadSum>);  // nobody destroys them

  const std::span<const ConstByteSpan> frames_;
  const bool is_on_;
  alignas(PayloadSum) std::byte few_[kOnStack * sizeof(PayloadSum)];  // only memory
  PayloadSum* const sums_;
};

/// The same value, rounded, in all of them.
void fill(const ValueSpan& values, float value);

/// NaNs: what came of frames that turn out to be damaged.
void poison(std::span<const ValueSpan> outputs);
void poison(std::span<const SegmentState> states);

}  // namespace tersor::encoding
