// Codecs with payloads cut like the values: each segment has a few sections, and a slice owns a
// part of each section. This base class implements all host work except the arithmetic.
#pragma once

#include "codecs/format_codec.h"

#include <tersor/align.h>
#include <tersor/codec.h>
#include <tersor/wire.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tersor::encoding {

/// A pointer into a section, convertible to a pointer to any word type.
template <typename Byte>  // std::byte or const std::byte
struct SectionPointer {
  Byte* bytes;
  template <typename Word>
  operator Word*() const {
    return reinterpret_cast<Word*>(bytes);
  }
};

/// The input of a piece: the sections of each payload, as kernels read them.
template <typename View>
struct PieceSource {
  const Segment& segment;
  const Slice& piece;
  std::span<const View> payloads;
};

/// The output of a piece.
template <std::size_t kSections>
struct PieceTarget {
  const Segment& segment;
  const Slice& piece;
  const StateWords& words;
  kernels::ErrorFeedback feedback;
  std::array<SectionPointer<std::byte>, kSections> sections;
  kernels::Store store;
  kernels::StreamedWords* sum;  // sum of the last section; null: no sum
};

/// The functions of such a codec. A single thread encodes, decodes or reduces a piece, from frames
/// with verified headers. Encoders return the number of finite values that became infinite.
template <class Own>
concept SlicedFormat = ReducedFrameFormat<Own> &&
    requires(const Own& own, const EncodeCall& encode, const ReduceCall& reduce,
             const FrameHeader& header, const kernels::EncodeInput& sent,
             const kernels::DecodeOutput& decoded, const typename Own::Source& from,
             const typename Own::Target& to) {
  /// Returns the bytes of `count` values in each section, without padding.
  { own.sections(std::size_t{}, Dtype::kF32) } -> std::same_as<typename Own::Sections>;
  { own.encode_piece(encode, header, sent, to) } -> std::same_as<std::size_t>;
  own.decode_piece(header, from, decoded);
  { own.reduce_piece(reduce, header, from, to) } -> std::same_as<std::size_t>;
};

/// `KernelView` is the kernels' view of a payload: a pointer to each of the `kCount` sections.
template <class Own, class KernelView, std::size_t kCount>
class SlicedCodec : public FormatCodec<Own> {
 public:
  using View = KernelView;
  using Sections = std::array<std::size_t, kCount>;
  using Source = PieceSource<View>;
  using Target = PieceTarget<kCount>;

  // Defaults that a codec may redefine:
  /// How kernels write the last section of payloads larger than the caches.
  static constexpr kernels::Store kLargeStore = kernels::Store::kCached;
  /// The data in a frame's header that only the encoder knows.
  static constexpr HeaderExtra kHeaderExtra = HeaderExtra::kNothing;
  /// Values of a piece. A value takes at most one byte, so the pieces of a few payloads fit into
  /// the L1 cache.
  static std::size_t piece_count(Dtype) { return kPieceBytes; }
  /// True if the first section is a number of a whole segment: the bits of the largest magnitude
  /// that a measuring pass over all slices finds before encoding. Then `Own` has the functions
  /// largest_sent and largest_sum, and a segment is not cut. Other sections are cut at multiples of
  /// kCutMultiple values.
  static constexpr bool kMeasures = false;
  static constexpr std::size_t kCutMultiple = 1;

  std::size_t segment_bytes(const Segment& segment, Dtype dtype) const {
    std::size_t all = 0;
    for (const std::size_t bytes : this->own().sections(segment.count, dtype))
      all += align_up(bytes, kSectionAlignment);
    return all;
  }

  /// Many frames need workspace: on a device for all frames, on hosts for views and sums.
  std::size_t workspace_bytes(const PlanRequest& request) const {
    if (request.memory == Memory::kDevice)
      return kernels::device_frames_bytes(request.contributions);
    return sums_bytes(request.contributions) +
           Views::workspace_bytes(request.contributions, request.threads);
  }

  void host_encode(const EncodeCall& call, FrameHeader header, ByteSpan frame) const {
    FrameWriter output(call, frame, bytes_of(call.gradients), Own::kLargeStore);
    if (Own::kHeaderExtra == HeaderExtra::kStep) write_step(header, output.words.step);
    measure(call, output, [&](const auto& own, const Slice& slice) -> std::uint32_t {
      if (!is_active(call.segments[slice.segment])) return 0;
      return own.largest_sent(sent_of(call, slice, output.words, output.store));
    });
    for_each_piece_of(call, output.sums_pieces(), [&](const Slice& piece) {
      const kernels::EncodeInput sent = sent_of(call, piece, output.words, output.store);
      write_piece(call, piece, output, [&](const Target& to, const Parts& parts) -> std::size_t {
        if (!is_active(to.segment)) return write_inactive(to, parts);
        return this->own().encode_piece(call, header, sent, to);
      });
    });
    output.seal(header);
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    const FrameHeader header = checked_header(call, expected);
    FrameSums sums(call, call.window_first ? SumTiming::kBeforeReads : kSumTiming);
    check_indices(call);
    if constexpr (Own::kMeasures)
      if (call.window_first) return decode_window(call, header);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_piece_of(call, sums.is_enabled(), [&](const Slice& piece) {
      Views views(call.frames.size(), views_workspace(call), piece.task);
      this->own().decode_piece(header, read_piece(call, piece, sums, views),
                               decoded_of(call, piece, store));
    });
    sums.check([&] { poison(call.outputs); });
  }

  void host_reduce(const ReduceCall& call, const FrameHeader& expected, ByteSpan frame) const {
    const FrameHeader header = checked_header(call, expected);
    FrameSums sums(call, kSumTiming);
    check_indices(call);
    FrameWriter output(call, frame, bytes_of(call.frames), Own::kLargeStore);
    measure(call, output, [&](const auto& own, const Slice& slice) {
      Views views(call.frames.size(), views_workspace(call), slice.task);
      const auto feedback = feedback_of(call.states, slice, output.words, output.store);
      return own.largest_sum(call, source_of(call, slice, views), feedback);
    });
    for_each_piece_of(call, sums.is_enabled(), [&](const Slice& piece) {
      Views views(call.frames.size(), views_workspace(call), piece.task);
      const Source from = read_piece(call, piece, sums, views);
      write_piece(call, piece, output, [&](const Target& to, const Parts&) {
        return this->own().reduce_piece(call, header, from, to);
      });
    });
    sums.check([&] { poison(call.states); });
    output.seal(header);
  }

 protected:
  using FormatCodec<Own>::FormatCodec;

  /// A slice's part of a section, in bytes of a payload. The last part of a segment ends after the
  /// padding.
  struct Part {
    std::size_t begin, count, end;
  };
  using Parts = std::array<Part, kCount>;

  template <typename Call>
  Parts parts_of(const Call& call, const Slice& slice) const {
    const auto sections = [&](std::size_t count) {
      return this->own().sections(count, dtype_of(call));
    };
    const Sections all = sections(call.segments[slice.segment].count);
    const Sections before = sections(slice.first), here = sections(slice.count);
    Parts parts;
    std::size_t section = slice.offset;
    for (std::size_t i = 0; i < kCount; ++i) {
      const bool is_whole = Own::kMeasures && i == 0, is_first = slice.first == 0;
      const std::size_t begin = section + (is_whole ? 0 : before[i]);
      section += align_up(all[i], kSectionAlignment);
      if (is_whole)  // belongs to the first slice
        parts[i] = {begin, is_first ? here[i] : 0, is_first ? section : begin};
      else
        parts[i] = {begin, here[i], slice.is_last ? section : begin + here[i]};
    }
    return parts;
  }

  static View view_of(ConstByteSpan frame, const Parts& parts) {
    return std::apply(
        [&](const auto&... part) { return View{pointer_to(payload_of(frame), part)...}; }, parts);
  }

  /// Calls visit(slice) for all slices of a call on the available threads.
  template <typename Call, typename Visitor>
  void for_each_slice_of(const Call& call, const Visitor& visit) const {
    for_each_slice(
        call.segments, call.execution.threads,
        [&](const Segment& segment) { return segment_bytes(segment, dtype_of(call)); }, visit);
  }

 private:
  using Views = ViewList<View>;

  /// Codecs with lists of indices check the lists before use, and the checksums before the lists.
  static constexpr bool kHasIndices = requires(const Own& own, const DecodeCall& call) {
    own.check_indices_of(call);
  };
  static constexpr SumTiming kSumTiming =
      kHasIndices ? SumTiming::kBeforeReads : SumTiming::kDuringReads;

  static std::size_t sums_bytes(std::size_t frames) {
    return kHasIndices ? 0 : FrameSums::workspace_bytes(frames);
  }

  /// Views follow the sums in the workspace.
  template <typename Call>
  static ByteSpan views_workspace(const Call& call) {
    return call.execution.workspace.subspan(sums_bytes(call.frames.size()));
  }

  template <typename Call>
  void check_indices(const Call& call) const {
    if constexpr (kHasIndices) this->own().check_indices_of(call);
  }

  /// Returns the header of a call's frames, including carried data.
  template <typename Call>
  static FrameHeader checked_header(const Call& call, FrameHeader expected) {
    check_headers(expected, call.frames, Own::kHeaderExtra);
    if (Own::kHeaderExtra == HeaderExtra::kStep)
      write_step(expected, step_in_header(read_frame_header(call.frames.front())));
    return expected;
  }

  template <typename Byte>
  static SectionPointer<Byte> pointer_to(std::span<Byte> payload, const Part& part) {
    return {payload.data() + part.begin};
  }

  template <typename Call, typename Visitor>
  void for_each_piece_of(const Call& call, bool split, const Visitor& visit) const {
    const std::size_t count = this->own().piece_count(dtype_of(call));
    for_each_slice_of(call, [&](const Slice& slice) {
      for_each_piece(slice, split ? count : slice.count, visit);
    });
  }

  /// Adds parts to a sum. Adjacent parts, e.g. of a whole segment, are added in one call, because
  /// for few values a sum takes longer than encoding.
  template <typename Sums>
  static void add(const Parts& parts, Sums& sums) {
    std::size_t begin = parts[0].begin, end = begin;
    for (const Part& part : parts) {
      if (part.begin != end) {
        if (begin != end) sums.add(begin, end);
        begin = part.begin;
      }
      end = part.end;
    }
    sums.add(begin, end);
  }

  /// Returns the sections of a piece of all frames.
  template <typename Call>
  Source source_of(const Call& call, const Slice& piece, Views& views) const {
    const Parts parts = parts_of(call, piece);
    for (std::size_t i = 0; i < call.frames.size(); ++i) views[i] = view_of(call.frames[i], parts);
    return {call.segments[piece.segment], piece, views.span()};
  }

  /// Also sums the piece.
  template <typename Call>
  Source read_piece(const Call& call, const Slice& piece, FrameSums& sums, Views& views) const {
    add(parts_of(call, piece), sums);
    return source_of(call, piece, views);
  }

  /// Writes the largest of the numbers that largest_of(own, slice) returns for a segment's slices
  /// to the start of the segment's sections.
  template <typename Call, typename Largest>
  void measure(const Call& call, const FrameWriter& output, const Largest& largest_of) const {
    if constexpr (Own::kMeasures) {
      const auto number_of = [&](std::size_t offset) {
        return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(output.payload.data() + offset));
      };
      std::size_t offset = 0;
      for (const Segment& segment : call.segments) {
        if (segment.count != 0) number_of(offset).store(0, std::memory_order_relaxed);
        offset += segment_bytes(segment, dtype_of(call));
      }
      for_each_slice_of(call, [&](const Slice& slice) {
        const std::uint32_t largest = largest_of(this->own(), slice);
        const auto number = number_of(slice.offset);
        std::uint32_t before = number.load(std::memory_order_relaxed);
        while (before < largest && !number.compare_exchange_weak(before, largest)) {
        }
      });
    }
  }

  /// Decodes a window. A window that begins inside a block reads the block through a copy.
  void decode_window(const DecodeCall& call, const FrameHeader& header) const {
    const ValueSpan& output = call.outputs[0];
    const std::size_t first = *call.window_first, end = first + output.count();
    const std::size_t edge = std::min(align_up(first, Own::kCutMultiple), end);
    const auto decode = [&](const Slice& slice, void* to) {
      Views views(call.frames.size(), views_workspace(call), slice.task);
      this->own().decode_piece(header, source_of(call, slice, views),
                               {to, output.dtype(), call.factor, call.mode});
    };
    if (first != edge) {
      alignas(kSectionAlignment) std::array<std::byte, Own::kCutMultiple * sizeof(float)> block =
          {};
      const std::size_t begin = first / Own::kCutMultiple * Own::kCutMultiple;
      const std::size_t count = std::min(Own::kCutMultiple, call.segments[0].count - begin);
      const ValueSpan part = output.subspan(0, edge - first);
      std::byte* copy = block.data() + (first - begin) * dtype_bytes(output.dtype());
      std::memcpy(copy, part.pointer(), part.bytes());
      decode({.first = begin, .count = count}, block.data());
      std::memcpy(part.pointer(), copy, part.bytes());
    }
    const std::size_t slices = ceil_div(end - edge, kSliceCount);
    parallel_for(slices, call.execution.threads,
                 [&](std::size_t task, std::size_t from, std::size_t to) {
                   const std::size_t begin = edge + from * kSliceCount;
                   const std::size_t count = std::min((to - from) * kSliceCount, end - begin);
                   decode({.first = begin, .count = count, .task = task},
                          output.subspan(begin - first, count).pointer());
                 });
  }

  /// Calls write(target, parts) to write a piece, and sums the sections and their padding.
  template <typename Call, typename Write>
  void write_piece(const Call& call, const Slice& piece, FrameWriter& output,
                   const Write& write) const {
    Parts parts = parts_of(call, piece);
    Part& last = parts.back();
    const auto write_all = [&](std::byte*, kernels::StreamedWords* sum) {
      Target to{call.segments[piece.segment],
                piece,
                output.words,
                feedback_of(call.states, piece, output.words, output.store),
                {},
                output.store,
                sum};
      for (std::size_t i = 0; i < kCount; ++i)
        to.sections[i] = pointer_to(output.payload, parts[i]);
      output.add_overflows(write(to, parts));
    };
    const std::size_t rest = output.write(last.begin, last.end, last.count, write_all);
    for (std::size_t i = 0; i + 1 < kCount; ++i)
      pad_section(output.payload, parts[i].begin + parts[i].count, parts[i].end);
    last.begin = rest;
    add(parts, output);
  }

  /// Sends zeros for an inactive segment.
  static std::size_t write_inactive(const Target& to, const Parts& parts) {
    for (std::size_t i = 0; i < kCount; ++i) std::memset(to.sections[i].bytes, 0, parts[i].count);
    keep_residual(to.feedback, to.piece.count);
    return 0;
  }
};

}  // namespace tersor::encoding
