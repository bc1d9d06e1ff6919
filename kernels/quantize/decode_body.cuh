// The decode kernel of quantising formats, and the code for reading a unit of a frame, shared with
// reduce. Grid and memory traffic are described in kernels/quantize/body.cuh.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/rows.cuh"
#include "kernels/quantize/tuning.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// kWhole if all rows of a unit are within the segment, else kPart.
enum class UnitKind : std::uint8_t { kWhole, kPart };

/// The positions of this thread's codes and scales of a unit, the same in every frame.
template <class Format, unsigned kRow>
class QuantizedRows {
 public:
  TERSOR_DEVICE QuantizedRows(const UnitPosition<kRow>& position, std::size_t offset)
      : position_(position),
        scales_(offset + (position.first / Format::kBlock + scale_of_thread()) * sizeof(float)),
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
  static constexpr unsigned kChunk = kChunkValues<kRow>;

  /// Loads the unscaled values of one frame's codes, and the scales. Both are zero after the
  /// segment's end.
  template <UnitKind kUnit>
  TERSOR_DEVICE void load(const std::byte* payload, Rows<kRow>& codes,
                          float (&scales)[kUnitChunks<kRow>]) const {
    const auto* scale = reinterpret_cast<const float*>(payload + scales_);
    const std::byte* from = payload + codes_;
    const unsigned end = position_.values();
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool shares = Format::kBlock > kChunk && chunk % 2 == 1;
      RowBytes<kRowCodeBytes<Format, kRow>> row = {};
      scales[chunk] = shares ? scales[chunk - 1] : 0.0f;
      if (kUnit == UnitKind::kWhole || position_.index(chunk) < end) {
        row = decltype(row)::template load_from<Load::kInput>(from +
                                                              chunk * kChunk * Format::kBits / 8);
        if (!shares) scales[chunk] = load_input(scale + chunk * kChunk / Format::kBlock);
      }
      RowCodes<Format>::template values<kRow>(row, codes[chunk]);
    }
  }

  TERSOR_DEVICE unsigned scale_of_thread() const {
    return Format::kBlock < kChunk ? position_.thread * kRow / Format::kBlock : 0;
  }

  UnitPosition<kRow> position_;
  std::size_t scales_, codes_;  // in bytes from the start of the payload
};

template <class Format, typename T, DecodeMode kMode, unsigned kMostSegments, unsigned kMostFrames>
struct QuantizeDecodeKernel : UnitKernel {
  static constexpr unsigned kResident = kDecodeResident<T, kMode, kMostFrames>;
  static constexpr unsigned kRow = 16 / sizeof(T);
  struct Shared {
    ThreadSums<kThreads> read;
  };

  SegmentTable<DecodeEntry, kMostSegments> table;
  FrameList<kMostFrames> list;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const bool sound = list.check(block);
    const ReadSums sums(block, list, sound, shared.read);
    for_each_position<kRow>(
        block, table,
        [&](std::uint32_t round, unsigned iteration) { sums.add_round(round, iteration); },
        [&](const DecodeEntry& segment, const UnitPosition<kRow>& position) {
          auto* output = static_cast<T*>(segment.output);
          const bool aligned = is_aligned_for<T, kRow>(output);
          Rows<kRow> sum;
          if constexpr (kMode == DecodeMode::kAdd)
            load_rows<Load::kAny>(output, position, aligned, sum);
          else  // adding to -0 keeps the first frame's products and their signs
            fill_rows<kRow>(sum, list.frames == 0 ? 0.0f : -0.0f);
          const QuantizedRows<Format, kRow> rows(position, segment.offset);
          if (!sound)
            fill_rows<kRow>(sum, float_of(kNanBits));
          else if (position.is_whole())
            add_frames<UnitKind::kWhole>(rows, sum);
          else
            add_frames<UnitKind::kPart>(rows, sum);
          store_rows(sum, output, position, aligned);
        },
        DoNothing{});
    close_decoded<T>(block, table, sums, list);
  }

 private:
  template <UnitKind kUnit>
  TERSOR_DEVICE void add_frames(const QuantizedRows<Format, kRow>& rows, Rows<kRow>& sum) const {
    TERSOR_KEEP_LOOP
    for (unsigned index = 0; index < list.frames; ++index)
      rows.template add<kUnit>(list.payload(index), factor, sum);
  }
};

}  // namespace tersor::kernels
