// The kernels of quantising formats. Encode and decode process tiles of 1,024 values of one segment
// per warp, 32 values per thread (kernels/quantize/tile.cuh). Reduce, and tiles at other addresses
// or at a segment's end, are processed in units of 512 values, 16 per thread
// (kernels/quantize/unit.cuh). Values stay in registers between the single read and the single
// write. Encode, and decode of a single frame, sum checksums from the codes in registers.
//
// Grid: a block processes a range of consecutive tiles (kernels/device/tiles.cuh). For reduce, as
// many blocks as are resident. Memory traffic in bytes per value, for f32:
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

/// Adds the bytes written by a warp for a segment's values [first, end) to the frame's sum.
template <class Format, class Sum, class Entry>
TERSOR_DEVICE void sum_written_blocks(const Sum& sum, const Entry& segment, std::size_t first,
                                      std::size_t end) {
  static_assert(kUnitValues % (2 * Format::kBlock) == 0);  // unit scales come in pairs
  const auto sections = QuantizedSections<Format>::of(segment);
  sections.sum_scales(sum, first, end, segment.count);
  sections.sum_codes(sum, first, end);
}

/// Encodes sums with residuals of type E. See ReduceFrames.
template <class Format, typename E, NoiseKind kKind>
struct QuantizeSumCoder {
  using Order = RunOrder;
  using Policy = RunsPolicy<kReduceResident<kKind>>;
  using Residual = E;
  static constexpr unsigned kRow = 8;
  struct Shared {};

  std::byte* payload;
  std::uint64_t key;

  template <class Block>
  struct Pass {
    const QuantizeSumCoder& coder;
    const Block& block;
    float b;
    std::uint32_t step;

    template <class List>
    TERSOR_DEVICE void reduce(const ReduceEntry& segment, std::size_t first, const List& list,
                              float factor, bool valid) const {
      const UnitPosition<kRow> position{first, segment.count, block.warp().thread_rank()};
      const auto out =
          QuantizeUnit<Format, E, kKind, kRow>::of(segment, position, coder.payload, false);
      Rows<kRow> p;
      fill_rows<kRow>(p, Format::kZero);
      if (valid) add_all_frames(segment, position, list, factor, p);
      out.residual.add_to(position, 1.0f, b, p);
      if (!valid) poison(p);
      const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + first, coder.key, step,
                                        segment.parameter);
      out.write(block.warp(), p, noise);
    }
    TERSOR_DEVICE void flush() const {}
  };

  template <class Block>
  TERSOR_DEVICE Pass<Block> begin(const Block& block, const CallWords& words, Shared&) const {
    return {*this, block, words.residual_factor(), kKind == NoiseKind::kNone ? 0 : words.step_of()};
  }

  template <class Sum>
  TERSOR_DEVICE static void sum_written(const Sum& sum, const ReduceEntry& segment,
                                        std::size_t first, std::size_t end) {
    sum_written_blocks<Format>(sum, segment, first, end);
  }

  /// Adds all frames of a unit. Codes after the segment's end may be arbitrary in a received frame.
  template <class List>
  TERSOR_DEVICE static void add_all_frames(const ReduceEntry& segment,
                                           const UnitPosition<kRow>& position, const List& list,
                                           float factor, Rows<kRow>& sum) {
    const QuantizedRows<Format, kRow> rows(position, segment.offset);
    if (position.is_whole()) return add_frames<UnitKind::kFull>(rows, list, factor, sum);
    add_frames<UnitKind::kPartial>(rows, list, factor, sum);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::size_t left = position.row(chunk, false).left;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] = i < left ? sum[chunk][i] : 0.0f;
    }
  }

 private:
  template <UnitKind kUnit, class List>
  TERSOR_DEVICE static void add_frames(const QuantizedRows<Format, kRow>& rows, const List& list,
                                       float factor, Rows<kRow>& sum) {
    TERSOR_UNROLL_4
    for (unsigned index = 0; index < list.frames; ++index)
      rows.template add<kUnit>(list.payload(index), factor, sum);
  }

  TERSOR_DEVICE static void poison(Rows<kRow>& p) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) p[chunk][0] = float_of(kNanBits);
  }
};

template <class Format, typename E, NoiseKind kKind, unsigned kMaxSegments, unsigned kMaxFrames>
using QuantizeReduceKernel =
    ReduceFrames<QuantizeSumCoder<Format, E, kKind>, kMaxSegments, kMaxFrames>;

}  // namespace tersor::kernels
