// The kernels of quantising formats. Encode and decode process tiles of 1,024 values of one segment
// per warp, 32 values per thread (kernels/quantize/tile.cuh). Reduce, and tiles at other addresses
// or at a segment's end, are processed in units of 512 values, 16 per thread
// (kernels/quantize/unit.cuh). Values stay in registers between the single read and the single
// write. Encode, reduce of up to kHeldFrames frames, and decode of a single frame sum checksums
// from the codes in registers.
//
// Grid: a block processes a range of consecutive tiles (kernels/device/tiles.cuh). For reduce, as
// many blocks as are resident, each with a range of units. Memory traffic in bytes per value, for
// f32:
//   Encode: 4 read and 1 (int4: 1/2) written. Error feedback adds 4 read and 4 written.
//   Decode: 1 (1/2) read per frame and 4 written.
//   Reduce: 1 (1/2) read per frame and 1 (1/2) written. The owner's residual adds 4 read and
//     4 written.
// Each block adds one scale of 4 bytes.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/frame_kernels.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/decode_body.cuh"
#include "kernels/quantize/encode_body.cuh"
#include "kernels/quantize/tile.cuh"
#include "kernels/quantize/unit.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Encodes sums with residuals of type E. See ReduceFrames.
template <class Format, typename E, NoiseKind kKind>
struct QuantizeSumCoder {
  using Order = InUnitRanges;
  using Policy = ReducePolicy<kReduceResident<kKind>>;
  using Residual = E;
  using Sections = QuantizedSections<Format>;
  static constexpr unsigned kRow = 8;
  static constexpr unsigned kRowWords = kRow * Format::kBits / 32;  // of codes
  using Shared = UnitColumns<
      HeldWords<kRowWords, kUnitChunks<kRow>, 1, kWarpThreads * kRowWords / kChecksumColumns>,
      Policy::kThreads>;
  static_assert(kUnitValues % (2 * Format::kBlock) == 0);  // unit scales come in pairs

  std::byte* payload;
  std::uint64_t key;

  template <class Block>
  struct Pass {
    const QuantizeSumCoder& coder;
    const Block& block;
    float b;
    std::uint32_t step;

    template <class List, class Sums>
    TERSOR_DEVICE void reduce(const ReduceEntry& segment, std::size_t first, const List& list,
                              float factor, bool sound, Sums& sums) const {
      const UnitPosition<kRow> position{first, segment.count, block.warp().thread_rank()};
      const auto sections = Sections::of(segment);
      const bool adds = sums.start(sections.codes_of(first), position.is_whole());
      const auto out =
          QuantizeUnit<Format, E, kKind, kRow>::of(segment, position, coder.payload, false);
      Rows<kRow> p = {};
      if (sound) add_all_frames(segment, position, list, factor, sums, adds, p);
      out.residual.add_to(position, 1.0f, b, p);
      if (!sound) poison(p);
      const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + first, coder.key, step,
                                        segment.parameter);
      const auto codes = out.write(block.warp(), p, noise);
      if (adds)
        sums.add_written(codes.row);
      else
        sections.sum_codes(sums, first, first + position.values());
    }
    TERSOR_DEVICE void leave() const {}
  };

  template <class Block>
  TERSOR_DEVICE Pass<Block> begin(const Block& block, const CallWords& words, Shared&) const {
    return {*this, block, words.residual_factor(), kKind == NoiseKind::kNone ? 0 : words.step_of()};
  }

  /// Adds the scales. reduce adds the codes.
  template <class Sum>
  TERSOR_DEVICE static void sum_rest(const Sum& sum, const ReduceEntry& segment, std::size_t first,
                                     std::size_t end) {
    Sections::of(segment).sum_scales(sum, first, end, segment.count);
  }

 private:
  /// Adds all frames of a unit. Codes after the segment's end may be arbitrary in a received frame.
  template <class List, class Sums>
  TERSOR_DEVICE static void add_all_frames(const ReduceEntry& segment,
                                           const UnitPosition<kRow>& position, const List& list,
                                           float factor, const Sums& sums, bool adds,
                                           Rows<kRow>& sum) {
    const QuantizedRows<Format, kRow> rows(position, segment.offset);
    if (adds && sums.sums_reads())
      return add_frames<UnitKind::kWhole>(
          rows, list, factor, sum,
          [&, weights = sums.weights()](unsigned index, const auto& codes) {
            sums.add(1 + index, codes, weights);
          });
    if (position.is_whole())
      return add_frames<UnitKind::kWhole>(rows, list, factor, sum, DoNothing{});
    add_frames<UnitKind::kPart>(rows, list, factor, sum, DoNothing{});
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::size_t left = position.row(chunk, false).left;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] = i < left ? sum[chunk][i] : 0.0f;
    }
  }

  template <UnitKind kUnit, class List, class Hold>
  TERSOR_DEVICE static void add_frames(const QuantizedRows<Format, kRow>& rows, const List& list,
                                       float factor, Rows<kRow>& sum, const Hold& hold) {
    for_each_frame<4>(
        list.frames, [&](unsigned index) { return rows.template load<kUnit>(list.payload(index)); },
        [&](unsigned index, const auto& frame) {
          rows.add(frame, factor, sum);
          hold(index, frame.row);
        });
  }

  TERSOR_DEVICE static void poison(Rows<kRow>& p) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) p[chunk][0] = float_of(kNanBits);
  }
};

template <class Format, typename E, NoiseKind kKind, unsigned kMostSegments, unsigned kMostFrames>
using QuantizeReduceKernel =
    ReduceFrames<QuantizeSumCoder<Format, E, kKind>, kMostSegments, kMostFrames>;

}  // namespace tersor::kernels
