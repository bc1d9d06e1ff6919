// Codecs that send scales, then codes, for each segment: what they share, which on hosts is all but
// the arithmetic and the header.
#pragma once

#include "codecs/frame_codec.h"

#include <tersor/codec.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace tersor::encoding {

/// What a number of values takes in a payload, in bytes; the offset is that of a whole segment.
struct SectionBytes {
  std::size_t scales, codes_offset, codes, all;
};

/// Where a piece is written to, and how.
template <typename Scale>
struct ScaledTarget {
  const Segment& segment;
  const Slice& piece;
  const StateWords& words;
  kernels::ErrorFeedback feedback;
  Scale* scales;
  std::byte* codes;
  kernels::Store store;
  kernels::StreamedWords* sum;  // of the codes; null: no sum
};

/// `Sections` is a callable that says the SectionBytes of a count of values, and has
///   View     the scales and codes of one payload, as kernels read them
///   kBlock   values that share a scale
///   kLarge   how kernels write the codes of payloads that are larger than the caches
template <class Own, class Sections>
class ScaledCodec : public FrameCodec<Own> {
 public:
  using View = typename Sections::View;
  using Scale = std::remove_const_t<std::remove_pointer_t<decltype(View::scales)>>;
  using Target = ScaledTarget<Scale>;

  CodecTraits traits() const override { return {.block = Sections::kBlock}; }
  std::size_t segment_bytes(const Segment& segment, Dtype) const {
    return sections_(segment.count).all;
  }
  std::size_t workspace_bytes(const PlanRequest& request) const {
    return summed_workspace_bytes<View>(request);
  }

 protected:
  ScaledCodec(CodecSpec spec, std::uint16_t id, Sections sections = {})
      : FrameCodec<Own>(std::move(spec), id), sections_(sections) {}

  /// encode(gradient, target) codes a piece, and returns how many finite values became others.
  template <typename Encode>
  void encode_pieces(const EncodeCall& call, const FrameHeader& header, ByteSpan frame,
                     const Encode& encode) const {
    FrameWriter output(call, frame, bytes_of(call.gradients), Sections::kLarge);
    for_each_piece_of(call, output.sums_pieces(), [&](const Slice& piece) {
      const ConstValueSpan values = call.gradients[piece.segment];
      write_piece(call, piece, output, [&](const Target& target) -> std::size_t {
        if (!is_active(target.segment)) return write_nothing(target);
        return encode(values.subspan(piece.first, piece.count), target);
      });
    });
    output.seal(header);
  }

  /// decode(payloads, piece, output, store) adds up a piece of frames whose headers were checked.
  template <typename Decode>
  void decode_pieces(const DecodeCall& call, const Decode& decode) const {
    const kernels::Store store = store_for(bytes_of(call.frames) + bytes_of(call.outputs));
    FrameSums sums(call);
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      Views views(call.frames.size(), views_workspace(call), piece.task);
      read_piece(call, piece, sums, views);
      const ValueSpan output = call.outputs[piece.segment];
      decode(views.span(), piece, output.subspan(piece.first, piece.count), store);
    });
    sums.check([&] { poison(call.outputs); });
  }

  /// reduce(payloads, target) adds up a piece of frames whose headers were checked, and codes it.
  template <typename Reduce>
  void reduce_pieces(const ReduceCall& call, const FrameHeader& header, ByteSpan frame,
                     const Reduce& reduce) const {
    FrameSums sums(call);
    FrameWriter output(call, frame, bytes_of(call.frames), Sections::kLarge);
    for_each_piece_of(call, sums.is_on(), [&](const Slice& piece) {
      Views views(call.frames.size(), views_workspace(call), piece.task);
      read_piece(call, piece, sums, views);
      write_piece(call, piece, output,
                  [&](const Target& target) { return reduce(views.span(), target); });
    });
    sums.check([&] { poison(call.states); });
    output.seal(header);
  }

 private:
  using Views = ViewList<View>;

  // Values of a piece: their codes, of a byte at most, and those of a few payloads, fit into the
  // first caches.
  static constexpr std::size_t kPieceCount = kPieceBytes;

  /// Where a slice's sections lie in a payload, in bytes, with the padding behind a segment's last.
  struct Range {
    std::size_t scales, scales_end, codes, codes_end;
  };

  Range range_of(const Segment& segment, const Slice& slice) const {
    const SectionBytes all = sections_(segment.count), before = sections_(slice.first);
    const SectionBytes here = sections_(slice.count);
    const std::size_t scales = slice.offset + before.scales;
    const std::size_t codes = slice.offset + all.codes_offset + before.codes;
    if (slice.is_last)
      return {scales, slice.offset + all.codes_offset, codes, slice.offset + all.all};
    return {scales, scales + here.scales, codes, codes + here.codes};
  }

  /// Sums scales, and codes from a byte on: at once where they follow each other, as a whole
  /// segment's do, for of few values a sum takes longer than coding them.
  template <typename Sums>
  static void add_range(const Range& range, std::size_t codes, Sums& sums) {
    if (range.scales_end == codes) return sums.add(range.scales, range.codes_end);
    sums.add(range.scales, range.scales_end);
    sums.add(codes, range.codes_end);
  }

  template <typename Call, typename Visitor>
  void for_each_piece_of(const Call& call, bool cut, const Visitor& visit) const {
    const auto segment_bytes = [&](const Segment& segment) { return sections_(segment.count).all; };
    for_each_slice(call.segments, call.execution.threads, segment_bytes, [&](const Slice& slice) {
      for_each_piece(slice, cut ? kPieceCount : slice.count, visit);
    });
  }

  /// Sums a piece of all frames, and says where it lies.
  template <typename Call>
  void read_piece(const Call& call, const Slice& piece, FrameSums& sums, Views& views) const {
    const Range range = range_of(call.segments[piece.segment], piece);
    add_range(range, range.codes, sums);
    for (std::size_t i = 0; i < call.frames.size(); ++i) {
      const std::byte* payload = payload_of(call.frames[i]).data();
      views[i] = {reinterpret_cast<const Scale*>(payload + range.scales), payload + range.codes};
    }
  }

  /// Has write(target) write the sections of a piece; sums them and their padding.
  template <typename Call, typename Write>
  void write_piece(const Call& call, const Slice& piece, FrameWriter& output,
                   const Write& write) const {
    const Segment& segment = call.segments[piece.segment];
    const Range range = range_of(segment, piece);
    const SectionBytes here = sections_(piece.count);
    auto* scales = reinterpret_cast<Scale*>(output.payload.data() + range.scales);
    const std::size_t rest =
        output.write(range.codes, range.codes_end, here.codes,
                     [&](std::byte* codes, kernels::StreamedWords* sum) {
                       output.add_overflows(
                           write(Target{segment, piece, output.words,
                                        feedback_of(call.states, piece, output.words, output.store),
                                        scales, codes, output.store, sum}));
                     });
    pad_section(output.payload, range.scales + here.scales, range.scales_end);
    add_range(range, rest, output);
  }

  /// Of an inactive segment zeros are sent.
  std::size_t write_nothing(const Target& target) const {
    const SectionBytes here = sections_(target.piece.count);
    std::memset(target.scales, 0, here.scales);
    std::memset(target.codes, 0, here.codes);
    keep_residual(target.feedback, target.piece.count);
    return 0;
  }

  Sections sections_;
};

}  // namespace tersor::encoding
