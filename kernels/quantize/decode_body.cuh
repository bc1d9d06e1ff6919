// The decode kernel of quantising formats, and the code for reading a unit of a frame, shared with
// reduce. Grid and memory traffic are described in kernels/quantize/body.cuh.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/frame_kernels.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/rows.cuh"
#include "kernels/quantize/tile.cuh"
#include "kernels/quantize/tuning.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// kFull if all rows of a unit are within the segment, else kPartial.
enum class UnitKind : std::uint8_t { kFull, kPartial };

/// The positions of this thread's codes and scales of a unit, the same in every frame.
template <class Format, unsigned kRow>
class QuantizedRows {
 public:
  TERSOR_DEVICE QuantizedRows(const UnitPosition<kRow>& position, std::size_t offset)
      : position_(position),
        sections_(offset),
        scales_(offset + typename Format::Layout{position.count}.scales_offset() +
                (position.first / Format::kBlock + scale_of_thread()) *
                    sizeof(typename Scale::Stored)),
        codes_(offset + typename Format::Layout{position.count}.codes_offset() +
               position.offset(0) * Format::kBits / 8) {}

  /// Adds one frame's values times `factor` to `sum`.
  template <UnitKind kUnit>
  TERSOR_DEVICE void add(const std::byte* payload, float factor, Rows<kRow>& sum) const {
    Rows<kRow> codes;
    float scales[kUnitChunks<kRow>];
    load<kUnit>(payload, codes, scales);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const float scale = scales[chunk] * factor;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i)
        sum[chunk][i] = fused_multiply_add(codes[chunk][i], scale, sum[chunk][i]);
    }
  }

 private:
  using Scale = typename Format::Scale;
  static constexpr unsigned kChunk = kChunkValues<kRow>;

  /// Loads the unscaled values of one frame's codes, and the scales. Both are zero after the
  /// segment's end.
  template <UnitKind kUnit>
  TERSOR_DEVICE void load(const std::byte* payload, Rows<kRow>& codes,
                          float (&scales)[kUnitChunks<kRow>]) const {
    const auto* scale = reinterpret_cast<const typename Scale::Stored*>(payload + scales_);
    const auto segment_scale = segment_scale_of<Format>(payload + sections_);
    const std::byte* from = payload + codes_;
    const unsigned end = position_.values();
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool shares = Format::kBlock > kChunk && chunk % 2 == 1;
      RowBytes<kRowCodeBytes<Format, kRow>> row = {};
      scales[chunk] = shares ? scales[chunk - 1] : 0.0f;
      if (kUnit == UnitKind::kFull || position_.index(chunk) < end) {
        row = decltype(row)::template load_from<Load::kInput>(from +
                                                              chunk * kChunk * Format::kBits / 8);
        if (!shares)
          scales[chunk] =
              Scale::value(load_input(scale + chunk * kChunk / Format::kBlock), segment_scale);
      }
      RowCodes<Format>::template values<kRow>(row, codes[chunk]);
    }
  }

  TERSOR_DEVICE unsigned scale_of_thread() const {
    return Format::kBlock < kChunk ? position_.thread * kRow / Format::kBlock : 0;
  }

  UnitPosition<kRow> position_;
  std::size_t sections_, scales_, codes_;  // in bytes from the start of the payload
};

/// The part of the only segment that a call decodes.
struct DecodeWindow {
  std::uint64_t first = 0, end = ~std::uint64_t{0};

  TERSOR_DEVICE bool has(std::uint64_t index) const { return index >= first && index < end; }
  /// True if some or all of the values [begin, stop) are missing.
  TERSOR_DEVICE bool excludes_any(std::uint64_t begin, std::uint64_t stop) const {
    return begin < first || stop > end;
  }
  TERSOR_DEVICE bool excludes_all(std::uint64_t begin, std::uint64_t stop) const {
    return stop <= first || begin >= end;
  }
};
/// Formats whose segments are cut have no windows.
struct NoWindow {
  static constexpr std::uint64_t first = 0;
  TERSOR_DEVICE static constexpr bool has(std::uint64_t) { return true; }
  TERSOR_DEVICE static constexpr bool excludes_any(std::uint64_t, std::uint64_t) { return false; }
  TERSOR_DEVICE static constexpr bool excludes_all(std::uint64_t, std::uint64_t) { return false; }
};

/// Decodes to values of type T. See DecodeFrames.
template <class Format, typename T, DecodeMode kMode>
struct QuantizeReader : std::conditional_t<kHasSegmentScale<Format>, DecodeWindow, NoWindow> {
  using Order = RangeOrder;
  using Policy = QuantizeDecodePolicy<kMode, kHasSegmentScale<Format>>;
  using Value = T;
  using Tile = DecodeTile<Format, T>;
  using Sections = QuantizedSections<Format>;
  static constexpr bool kSumsCodes = true;
  static constexpr bool kAdds = kMode == DecodeMode::kAdd;
  static constexpr unsigned kRow = Tile::kRow, kRows = Tile::kRows;
  using Window = std::conditional_t<kHasSegmentScale<Format>, DecodeWindow, NoWindow>;

  template <class Block, class List>
  class Pass {
   public:
    TERSOR_DEVICE Pass(const QuantizeReader& reader, const Block& block, const List& list,
                       float factor, bool valid)
        : window_(reader),
          block_(block),
          list_(list),
          factor_(factor),
          valid_(valid),
          decodes_tiles_(valid && list.frames == 1) {}

    template <class Sums>
    TERSOR_DEVICE void decode(const DecodeEntry& segment, std::size_t first, const Sums& sums) {
      bool codes_summed = false;
      if (window_.excludes_all(first, first + kTileValues)) return;
      if (decodes_tiles_ && segment.count - first >= kTileValues &&
          !window_.excludes_any(first, first + kTileValues) &&
          is_aligned_for<T, kRow>(output_of(segment))) {
        codes_summed = decode_tile(segment, first, sums);
      } else {
        TERSOR_KEEP_LOOP
        for (unsigned unit = 0; unit < kTileValues; unit += kUnitValues)
          if (first + unit < segment.count) decode_unit(segment, first + unit);
      }
      if (sums.is_single() && !codes_summed)
        Sections::of(segment).sum_codes(sums, first, end_of_tile(segment, first));
    }

    template <class Sums>
    TERSOR_DEVICE void flush(const Sums& sums) {
      if (sums.is_single()) sums.add(thread_columns_.take(tile().own_word()));
    }

   private:
    TERSOR_DEVICE Tile tile() const { return {block_.warp().thread_rank()}; }
    TERSOR_DEVICE T* output_of(const DecodeEntry& segment) const {
      return static_cast<T*>(segment.output) - window_.first;
    }

    /// Decodes 1,024 values of a single frame to an address that is a multiple of 16. True if the
    /// codes were added to the frame's sum.
    template <class Sums>
    TERSOR_DEVICE bool decode_tile(const DecodeEntry& segment, std::size_t first,
                                   const Sums& sums) {
      using Bytes = RowBytes<sizeof(T) * kRow>;
      const Sections sections = Sections::of(segment);
      const std::size_t codes = sections.codes_of(first);
      const std::byte* payload = list_.payload(0);
      auto* to = base_address(output_of(segment) + first + tile().index());
      typename Tile::Rows rows;
      tile().load(payload + codes, payload + sections.scale_of(first),
                  segment_scale_of<Format>(payload + segment.offset), rows);
      Bytes old[kAdds ? kRows : 1];
      TERSOR_UNROLL
      for (unsigned row = 0; kAdds && row < kRows; ++row)
        old[row] = Bytes::template load_from<Load::kAny>(to + row * Tile::kStep);
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row) {
        float sum[kRow];
        if constexpr (kAdds)
          unpack_row<T>(old[row], sum);
        else
          fill_row<kRow>(sum, -0.0f);
        add_row(rows, row, sum);
        pack_row<T>(sum).store_to(to + row * Tile::kStep);
      }
      const std::uint64_t word = (sizeof(FrameHeader) + codes) / sizeof(std::uint32_t);
      if (!sums.is_single() || !thread_columns_.holds(word, kTileValues * Format::kBits / 32))
        return false;
      typename ThreadColumns<typename Tile::WordLayout>::Words words;
      tile().words_of(rows, words);
      thread_columns_.add(word, tile().own_word(), words,
                          [&](std::uint64_t part) { sums.add(part); });
      return true;
    }

    /// sum += values of a row.
    TERSOR_DEVICE void add_row(const typename Tile::Rows& rows, unsigned row,
                               float (&sum)[kRow]) const {
      float values[kRow];
      RowCodes<Format>::template values<kRow>(rows.codes[row], values);
      const float scale = rows.scales[row] * factor_;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) sum[i] = fused_multiply_add(values[i], scale, sum[i]);
    }

    /// Decodes up to 512 values at any address.
    TERSOR_DEVICE void decode_unit(const DecodeEntry& segment, std::size_t first) const {
      const UnitPosition<kRow> position{first, segment.count, block_.warp().thread_rank()};
      T* output = output_of(segment);
      const bool aligned = is_aligned_for<T, kRow>(output);
      const bool partial = window_.excludes_any(first, first + position.values());
      Rows<kRow> sum;
      if constexpr (kAdds) {
        if (partial)
          for_each_in_window(position, sum, [&](std::size_t at, float& value) {
            value = to_f32(load(output + at));
          });
        else
          load_rows<Load::kAny>(output, position, aligned, sum);
      }
      if constexpr (!kAdds)  // adding to -0 keeps the first frame's products and their signs
        fill_rows<kRow>(sum, list_.frames == 0 ? 0.0f : -0.0f);
      const QuantizedRows<Format, kRow> rows(position, segment.offset);
      if (!valid_)
        fill_rows<kRow>(sum, float_of(kNanBits));
      else if (position.is_whole())
        add_frames<UnitKind::kFull>(rows, sum);
      else
        add_frames<UnitKind::kPartial>(rows, sum);
      if (partial)
        for_each_in_window(position, sum, [&](std::size_t at, float value) {
          store(output + at, from_f32<T>(value));
        });
      else
        store_rows(sum, output, position, aligned);
    }

    /// Calls visit(index, value) for the values of a unit in the window.
    template <class Visit>
    TERSOR_DEVICE void for_each_in_window(const UnitPosition<kRow>& position, Rows<kRow>& sum,
                                          const Visit& visit) const {
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i) {
          const std::size_t at = position.offset(chunk) + i;
          if (window_.has(at)) visit(at, sum[chunk][i]);
        }
      }
    }

    template <UnitKind kUnit>
    TERSOR_DEVICE void add_frames(const QuantizedRows<Format, kRow>& rows, Rows<kRow>& sum) const {
      TERSOR_KEEP_LOOP
      for (unsigned index = 0; index < list_.frames; ++index)
        rows.template add<kUnit>(list_.payload(index), factor_, sum);
    }

    Window window_;
    const Block& block_;
    const List& list_;
    float factor_;
    bool valid_, decodes_tiles_;
    ThreadColumns<typename Tile::WordLayout> thread_columns_;
  };

  template <class Block, class List>
  TERSOR_DEVICE Pass<Block, List> begin(const Block& block, const List& list, float factor,
                                        bool valid) const {
    return {*this, block, list, factor, valid};
  }

  /// Adds the scales. decode adds the codes.
  template <class Sums>
  TERSOR_DEVICE static void sum_read(const Sums& sums, const DecodeEntry& segment,
                                     std::size_t first, std::size_t end) {
    Sections::of(segment).sum_scales(sums, first, end, segment.count);
  }
};

template <class Format, typename T, DecodeMode kMode, unsigned kMaxSegments, unsigned kMaxFrames>
using QuantizeDecodeKernel =
    DecodeFrames<QuantizeReader<Format, T, kMode>, kMaxSegments, kMaxFrames>;

}  // namespace tersor::kernels
