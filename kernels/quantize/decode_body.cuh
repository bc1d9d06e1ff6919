// The decode kernel of int8 and int4, and what a unit of a frame is read with, there and in reduce.
// Grid and bytes a value: kernels/quantize/body.cuh.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/codes.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

constexpr unsigned kQuantizeThreads = 256;

/// Whether a unit lies in its segment with all its rows.
enum class UnitKind : std::uint8_t { kWhole, kPart };

/// Where this thread's codes and scales of a unit lie in every frame.
template <class Format, unsigned kRow>
class QuantizedRows {
 public:
  TERSOR_DEVICE QuantizedRows(const UnitPlace<kRow>& place, std::size_t offset)
      : place_(place),
        scales_(offset + (place.first / Format::kBlock + scale_of_thread()) * sizeof(float)),
        codes_(offset + typename Format::Layout{place.count}.codes_offset() +
               place.position(0) * Format::kBits / 8) {}

  /// One frame's rows as whole numbers, and their scales; zeros behind the segment's end.
  template <UnitKind kUnit>
  TERSOR_DEVICE void load(const std::byte* payload, float (&codes)[kUnitChunks<kRow>][kRow],
                          float (&scales)[kUnitChunks<kRow>]) const {
    const auto* scale = reinterpret_cast<const float*>(payload + scales_);
    const std::byte* from = payload + codes_;
    const unsigned end = place_.values();
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool shares = Format::kBlock > kChunk && chunk % 2 == 1;
      RowBytes<kRowCodeBytes<Format, kRow>> row = {};
      scales[chunk] = shares ? scales[chunk - 1] : 0.0f;
      if (kUnit == UnitKind::kWhole || place_.index(chunk) < end) {
        row = decltype(row)::template load_from<Load::kInput>(from +
                                                              chunk * kChunk * Format::kBits / 8);
        if (!shares) scales[chunk] = load_input(scale + chunk * kChunk / Format::kBlock);
      }
      unpack_codes<Format, kRow>(row, codes[chunk]);
    }
  }

 private:
  static constexpr unsigned kChunk = kChunkValues<kRow>;

  TERSOR_DEVICE unsigned scale_of_thread() const {
    return Format::kBlock < kChunk ? place_.thread * kRow / Format::kBlock : 0;
  }

  UnitPlace<kRow> place_;
  std::size_t scales_, codes_;  // bytes behind the payload's beginning
};

template <class Format, typename T, DecodeMode kMode, unsigned kMostSegments, unsigned kMostFrames>
struct QuantizeDecodeKernel {
  static constexpr unsigned kThreads = kQuantizeThreads;
  static constexpr unsigned kResident = 4;
  static constexpr bool kScans = false;
  static constexpr unsigned kRow = 16 / sizeof(T);
  struct Shared {};
  using Rows = QuantizedRows<Format, kRow>;

  SegmentTable<DecodeEntry, kMostSegments> table;
  FrameList<kMostFrames> list;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    const bool sound = list.check(block);
    for_each_unit(block, table.units, [&](std::uint32_t unit) {
      const DecodeEntry& segment = table.find(unit);
      const std::size_t first = std::size_t{unit - segment.first_unit} * kUnitValues;
      decode_unit(segment, {first, segment.count, block.warp().thread_rank()}, sound);
    });
  }

 private:
  TERSOR_DEVICE void decode_unit(const DecodeEntry& segment, const UnitPlace<kRow>& place,
                                 bool sound) const {
    auto* output = static_cast<T*>(segment.output);
    const bool aligned = is_aligned_for<T, kRow>(output);
    float sum[kUnitChunks<kRow>][kRow];
    if constexpr (kMode == DecodeMode::kAdd)
      load_rows<Load::kAny>(output, place, aligned, sum);
    else  // what is added to -0 stays as it is: the first frame's products, with their signs
      fill(sum, list.frames == 0 ? 0.0f : -0.0f);
    const Rows rows(place, segment.offset);
    if (!sound)
      fill(sum, float_of(kNanBits));
    else if (place.is_whole())
      add_frames<UnitKind::kWhole>(rows, sum);
    else
      add_frames<UnitKind::kPart>(rows, sum);
    store_rows(sum, output, place, aligned);
  }

  TERSOR_DEVICE static void fill(float (&rows)[kUnitChunks<kRow>][kRow], float value) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) rows[chunk][i] = value;
    }
  }

  template <UnitKind kUnit>
  TERSOR_DEVICE void add_frames(const Rows& rows, float (&sum)[kUnitChunks<kRow>][kRow]) const {
    TERSOR_KEEP_LOOP for (unsigned index = 0; index < list.frames; ++index) {
      float codes[kUnitChunks<kRow>][kRow], scales[kUnitChunks<kRow>];
      rows.template load<kUnit>(list.payload(index), codes, scales);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        const float scale = scales[chunk] * factor;
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i)
          sum[chunk][i] = fused_multiply_add(codes[chunk][i], scale, sum[chunk][i]);
      }
    }
  }
};

}  // namespace tersor::kernels
