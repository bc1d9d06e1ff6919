// Codecs whose payload is cut as its values are: some sections for each segment, of each of which a
// slice has its own part. What they share on hosts is all but the arithmetic.
#pragma once

#include "codecs/format_codec.h"

#include <tersor/align.h>
#include <tersor/codec.h>
#include <tersor/wire.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

namespace tersor::encoding {

/// Where a part of a section lies, whatever its words are.
template <typename Byte>  // std::byte, or const
struct SectionPointer {
  Byte* bytes;
  template <typename Word>
  operator Word*() const {
    return reinterpret_cast<Word*>(bytes);
  }
};

/// What a piece is made of: the sections of each payload, as kernels read them.
template <typename View>
struct PieceSource {
  const Segment& segment;
  const Slice& piece;
  std::span<const View> payloads;
};

/// Where a piece is written to, and how.
template <std::size_t kSections>
struct PieceTarget {
  const Segment& segment;
  const Slice& piece;
  const StateWords& words;
  kernels::ErrorFeedback feedback;
  std::array<SectionPointer<std::byte>, kSections> sections;
  kernels::Store store;
  kernels::StreamedWords* sum;  // of the last section; null: no sum
};

/// What such a codec says of itself. Pieces are coded and added up by one thread each, of frames
/// whose headers were checked; writing one says how many finite values became others.
template <class Own>
concept SlicedFormat = ReducedFrameFormat<Own> &&
    requires(const Own& own, const EncodeCall& encode, const ReduceCall& reduce,
             const FrameHeader& header, const kernels::Sent& sent, const kernels::Decoded& decoded,
             const typename Own::Source& from, const typename Own::Target& to) {
  /// Bytes that so many values take in each section, without padding.
  { own.sections(std::size_t{}, Dtype::kF32) } -> std::same_as<typename Own::Sections>;
  { own.encode_piece(encode, header, sent, to) } -> std::same_as<std::size_t>;
  own.decode_piece(header, from, decoded);
  { own.reduce_piece(reduce, header, from, to) } -> std::same_as<std::size_t>;
};

/// `KernelView` is how kernels read one payload: a pointer to each of the `kCount` sections.
template <class Own, class KernelView, std::size_t kCount>
class SlicedCodec : public FormatCodec<Own> {
 public:
  using View = KernelView;
  using Sections = std::array<std::size_t, kCount>;
  using Source = PieceSource<View>;
  using Target = PieceTarget<kCount>;

  // What a codec says otherwise where it has to:
  /// How kernels write the last section of payloads that are larger than the caches.
  static constexpr kernels::Store kLarge = kernels::Store::kCached;
  /// What a frame carries that only its encoder knew.
  static constexpr Carried kCarried = Carried::kNothing;
  /// Values of a piece: what they take, a byte each at most, and that of a few payloads, fits into
  /// the first caches.
  static std::size_t piece_count(Dtype) { return kPieceBytes; }

  std::size_t segment_bytes(const Segment& segment, Dtype dtype) const {
    std::size_t all = 0;
    for (const std::size_t bytes : this->own().sections(segment.count, dtype))
      all += align_up(bytes, kSectionAlignment);
    return all;
  }

  /// For many frames side by side: on a device, or on hosts as views, with their sums.
  std::size_t workspace_bytes(const PlanRequest& request) const {
    if (request.memory == Memory::kDevice)
      return kernels::device_frames_bytes(request.contributions);
    return sums_bytes(request.contributions) +
           Views::workspace_bytes(request.contributions, request.threads);
  }

  void host_encode(const EncodeCall& call, FrameHeader header, ByteSpan frame) const {
    FrameWriter output(call, frame, bytes_of(call.gradients), Own::kLarge);
    if (Own::kCarried == Carried::kStep) carry_step(header, output.words.step);
    for_each_piece_of(call, output.sums_pieces(), [&](const Slice& piece) {
      const kernels::Sent sent = sent_of(call, piece, output.words, output.store);
      write_piece(call, piece, output, [&](const Target& to, const Parts& parts) -> std::size_t {
        if (!is_active(to.segment)) return write_nothing(to, parts);
        return this->own().encode_piece(call, header, sent, to);
      });
    });
    output.seal(header);
  }

  void host_decode(const DecodeCall& call, const FrameHeader& expected) const {
    const FrameHeader header = checked_header(call, expected);
    FrameSums sums(call, kSummed);
    check_places(call);
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      Views views(call.frames.size(), views_workspace(call), piece.task);
      this->own().decode_piece(header, read_piece(call, piece, sums, views),
                               decoded_of(call, piece, store));
    });
    sums.check([&] { poison(call.outputs); });
  }

  void host_reduce(const ReduceCall& call, const FrameHeader& expected, ByteSpan frame) const {
    const FrameHeader header = checked_header(call, expected);
    FrameSums sums(call, kSummed);
    check_places(call);
    FrameWriter output(call, frame, bytes_of(call.frames), Own::kLarge);
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
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

  /// A slice's part of a section, in bytes of a payload; padding is behind a segment's last.
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
      const std::size_t begin = section + before[i];
      section += align_up(all[i], kSectionAlignment);
      parts[i] = {begin, here[i], slice.is_last ? section : begin + here[i]};
    }
    return parts;
  }

  static View view_of(ConstByteSpan frame, const Parts& parts) {
    return std::apply(
        [&](const auto&... part) { return View{pointer_to(payload_of(frame), part)...}; }, parts);
  }

  /// Calls visit(slice) for all slices of a call, on the threads that there are.
  template <typename Call, typename Visitor>
  void for_each_slice_of(const Call& call, const Visitor& visit) const {
    for_each_slice(
        call.segments, call.execution.threads,
        [&](const Segment& segment) { return segment_bytes(segment, dtype_of(call)); }, visit);
  }

 private:
  using Views = ViewList<View>;

  /// Lists of places are looked at before they are believed, which comes after their sums.
  static constexpr bool kHasPlaces = requires(const Own& own, const DecodeCall& call) {
    own.check_places_of(call);
  };
  static constexpr Summed kSummed = kHasPlaces ? Summed::kFirst : Summed::kMeanwhile;

  static std::size_t sums_bytes(std::size_t frames) {
    return kHasPlaces ? 0 : FrameSums::workspace_bytes(frames);
  }

  /// Behind the sums.
  template <typename Call>
  static ByteSpan views_workspace(const Call& call) {
    return call.execution.workspace.subspan(sums_bytes(call.frames.size()));
  }

  template <typename Call>
  void check_places(const Call& call) const {
    if constexpr (kHasPlaces) this->own().check_places_of(call);
  }

  /// The header of a call's frames, with what they carry.
  template <typename Call>
  static FrameHeader checked_header(const Call& call, FrameHeader expected) {
    check_headers(expected, call.frames, Own::kCarried);
    if (Own::kCarried == Carried::kStep)
      carry_step(expected, carried_step(read_frame_header(call.frames.front())));
    return expected;
  }

  template <typename Byte>
  static SectionPointer<Byte> pointer_to(std::span<Byte> payload, const Part& part) {
    return {payload.data() + part.begin};
  }

  template <typename Call, typename Visitor>
  void for_each_piece_of(const Call& call, bool cut, const Visitor& visit) const {
    const std::size_t count = this->own().piece_count(dtype_of(call));
    for_each_slice_of(
        call, [&](const Slice& slice) { for_each_piece(slice, cut ? count : slice.count, visit); });
  }

  /// Sums parts: those that follow each other at once, as a whole segment's do, for of few values a
  /// sum takes longer than coding them.
  template <typename Sums>
  static void add(const Parts& parts, Sums& sums) {
    std::size_t begin = parts[0].begin, end = begin;
    for (const Part& part : parts) {
      if (part.begin != end) {
        sums.add(begin, end);
        begin = part.begin;
      }
      end = part.end;
    }
    sums.add(begin, end);
  }

  /// Sums a piece of all frames, and says where it lies.
  template <typename Call>
  Source read_piece(const Call& call, const Slice& piece, FrameSums& sums, Views& views) const {
    const Parts parts = parts_of(call, piece);
    add(parts, sums);
    for (std::size_t i = 0; i < call.frames.size(); ++i) views[i] = view_of(call.frames[i], parts);
    return {call.segments[piece.segment], piece, views.span()};
  }

  /// Has write(target, parts) write the sections of a piece; sums them and their padding.
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

  /// Of an inactive segment zeros are sent.
  static std::size_t write_nothing(const Target& to, const Parts& parts) {
    for (std::size_t i = 0; i < kCount; ++i) std::memset(to.sections[i].bytes, 0, parts[i].count);
    keep_residual(to.feedback, to.piece.count);
    return 0;
  }
};

}  // namespace tersor::encoding
