// The kernel bodies of int8 and int4: a warp takes a unit of 512 values of one segment at a time,
// 16 of them a thread, in registers between the one read and the one write.
//
// Grid: as many blocks of 256 threads as are resident, each warp striding over the units.
// Bytes a value, f32: encode 4 read and 1 (int4: 1/2) written, with feedback 4 more of each; decode
// 1 (1/2) read a frame and 4 written; reduce 1 (1/2) read a frame, 1 (1/2) written, with the
// owner's residual 4 more of each. One scale of 4 bytes a block besides.
#pragma once

#include "kernels/common/call.cuh"
#include "kernels/common/codes.cuh"
#include "kernels/common/units.cuh"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

constexpr unsigned kQuantizeThreads = 256;

/// Blocks on a multiprocessor: as many as need no spills. Noise of any element takes a counter a
/// value, feedback a second row of each chunk.
template <typename E, NoiseKind kKind>
constexpr unsigned kQuantizeResident = kKind == NoiseKind::kAny        ? 2
                                       : std::is_same_v<E, NoResidual> ? 4
                                                                       : 3;

/// The largest magnitude, as bits, of the block in which this thread's row of each chunk lies.
template <class Format, unsigned kRow, class Warp>
TERSOR_DEVICE void block_maxima(const Warp& warp, const float (&p)[kUnitChunks<kRow>][kRow],
                                std::uint32_t (&maxima)[kUnitChunks<kRow>]) {
  constexpr unsigned kChunk = kChunkValues<kRow>;
  TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
    std::uint32_t most = 0;
    TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) {
      const std::uint32_t bits = magnitude_bits(p[chunk][i]);
      most = bits > most ? bits : most;
    }
    maxima[chunk] = most;
  }
  if constexpr (Format::kBlock == 2 * kChunk) {
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; chunk += 2) {
      const std::uint32_t a = maxima[chunk], b = maxima[chunk + 1];
      maxima[chunk] = maxima[chunk + 1] = warp.maximum(a > b ? a : b);
    }
  } else if constexpr (Format::kBlock == kChunk) {
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) maxima[chunk] =
        warp.maximum(maxima[chunk]);
  } else {
    static_assert(2 * Format::kBlock == kChunk);
    const bool low = warp.thread_rank() < 16;
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::uint32_t first = warp.maximum(low ? maxima[chunk] : 0);
      const std::uint32_t second = warp.maximum(low ? 0 : maxima[chunk]);
      maxima[chunk] = low ? first : second;
    }
  }
}

/// A row's codes, and what they decode to where a residual wants it.
template <class Format, NoiseKind kKind, unsigned kRow>
TERSOR_DEVICE RowBytes<kRowCodeBytes<Format, kRow>> quantize_row(const float (&p)[kRow],
                                                                 const BlockScale& scale,
                                                                 const RowNoise<kKind, kRow>& noise,
                                                                 unsigned chunk,
                                                                 float (&decoded)[kRow]) {
  constexpr unsigned kByte = kKind == NoiseKind::kNone ? 0 : 1;  // of a sum that holds the code
  std::uint32_t sums[kRow];
  TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) {
    if constexpr (kKind == NoiseKind::kNone) {
      const float sum = nearest_sum(p[i], scale.inverse);
      decoded[i] = nearest_value(sum, scale.scale);
      sums[i] = bits_of(sum) - kNearestBits;
    } else {
      const std::uint32_t bits =
          bits_of(fused_multiply_add(p[i], scale.inverse, kStochasticMagic)) - kStochasticBits;
      const std::uint32_t sum = bits + noise.at(chunk, i);
      const std::int32_t code = static_cast<std::int32_t>(sum) >> 8;
      decoded[i] = float_of_small(code) * scale.scale;
      sums[i] = Format::kBits == 8 ? sum : static_cast<std::uint32_t>(code);
    }
  }
  return pack_codes<Format, kRow, kByte>(sums);
}

/// What encode and reduce do with p: codes, scales and residual of one unit.
template <class Format, typename E, NoiseKind kKind, unsigned kRow>
struct QuantizeUnit {
  using Layout = typename Format::Layout;

  UnitPlace<kRow> place;
  std::byte* sections;  // of the segment
  const E* residual_in;
  E* residual_out;
  bool aligned;  // the residual's rows
  bool keeps;    // all codes and scales are 0, the residual stays

  TERSOR_DEVICE void store_scale(unsigned chunk, float scale) const {
    const std::size_t position = place.position(chunk);
    if (position % Format::kBlock == 0 && position < place.count)
      store(reinterpret_cast<float*>(sections) + position / Format::kBlock, scale);
  }

  /// The padding of the scales is written with the segment's last unit.
  TERSOR_DEVICE void pad_scales() const {
    if (place.count - place.first > kUnitValues) return;
    const std::size_t block = Layout{place.count}.blocks() + place.thread;
    if (block * sizeof(float) < Layout{place.count}.codes_offset())
      store(reinterpret_cast<float*>(sections) + block, 0.0f);
  }

  TERSOR_DEVICE void store_codes(unsigned chunk,
                                 const RowBytes<kRowCodeBytes<Format, kRow>>& codes) const {
    const Layout layout{place.count};
    const std::size_t byte = place.position(chunk) * Format::kBits / 8;
    if (byte < layout.bytes() - layout.codes_offset())
      codes.store_to(sections + layout.codes_offset() + byte);
  }

  /// A chunk's codes and residual.
  TERSOR_DEVICE void write_chunk(unsigned chunk, const float (&p)[kRow], const BlockScale& scale,
                                 const RowNoise<kKind, kRow>& noise) const {
    float decoded[kRow];
    auto codes = quantize_row<Format>(p, scale, noise, chunk, decoded);
    if (scale.poisoned) codes = {};
    store_codes(chunk, codes);
    store_scale(chunk, keeps ? 0.0f : scale.scale);
    if constexpr (!std::is_same_v<E, NoResidual>) {
      const RowPlace row = place.row(chunk, aligned);
      if (scale.poisoned) {
        if (residual_in != residual_out) copy_row<E, kRow>(residual_in, residual_out, row);
        return;
      }
      float left[kRow];
      TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) left[i] = p[i] - decoded[i];
      store_row(left, residual_out, row);
    }
  }

  template <class Warp>
  TERSOR_DEVICE void write(const Warp& warp, const float (&p)[kUnitChunks<kRow>][kRow],
                           const RowNoise<kKind, kRow>& noise) const {
    std::uint32_t maxima[kUnitChunks<kRow>];
    block_maxima<Format, kRow>(warp, p, maxima);
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) write_chunk(
        chunk, p[chunk], keeps ? BlockScale{0.0f, 0.0f, true} : block_scale<Format>(maxima[chunk]),
        noise);
    pad_scales();
  }
};

template <class Format, typename G, typename E, NoiseKind kKind, unsigned kMost>
struct QuantizeEncodeKernel {
  static constexpr unsigned kThreads = kQuantizeThreads;
  static constexpr unsigned kResident = kQuantizeResident<E, kKind>;
  static constexpr bool kScans = false;
  static constexpr unsigned kRow = 16 / sizeof(G);
  struct Shared {};
  using Unit = QuantizeUnit<Format, E, kKind, kRow>;

  SegmentTable<EncodeEntry, kMost> table;
  std::byte* payload;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  std::uint64_t key;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    seal.write(block);
    const float a = words.gradient_factor(), b = words.residual_factor();
    const std::uint32_t step = kKind == NoiseKind::kNone ? 0 : words.step_of();
    for_each_unit(block, table.units, [&](std::uint32_t unit) {
      const EncodeEntry& segment = table.find(unit);
      const std::size_t first = std::size_t{unit - segment.first_unit} * kUnitValues;
      const Unit out = place_unit(segment, first, block.warp().thread_rank());
      float p[kUnitChunks<kRow>][kRow];
      load_unit(segment, out, a, b, p);
      const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + first, key, step,
                                        segment.parameter);
      out.write(block.warp(), p, noise);
    });
    next.write(block);
  }

 private:
  TERSOR_DEVICE Unit place_unit(const EncodeEntry& segment, std::size_t first,
                                unsigned thread) const {
    bool aligned = false;
    if constexpr (!std::is_same_v<E, NoResidual>)
      aligned = is_aligned_for<E, kRow>(segment.residual_in) &&
                is_aligned_for<E, kRow>(segment.residual_out);
    return {{first, segment.count, thread},
            payload + segment.offset,
            static_cast<const E*>(segment.residual_in),
            static_cast<E*>(segment.residual_out),
            aligned,
            segment.active != nullptr && load(segment.active) == 0};
  }

  TERSOR_DEVICE static void load_unit(const EncodeEntry& segment, const Unit& out, float a, float b,
                                      float (&p)[kUnitChunks<kRow>][kRow]) {
    const auto* gradient = static_cast<const G*>(segment.gradient);
    const bool aligned = is_aligned_for<G, kRow>(gradient);
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
        load_row<Load::kInput>(gradient, out.place.row(chunk, aligned), p[chunk]);
    if constexpr (!std::is_same_v<E, NoResidual>) {
      TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        float residual[kRow];
        load_row<Load::kAny>(out.residual_in, out.place.row(chunk, out.aligned), residual);
        TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) p[chunk][i] =
            a * p[chunk][i] + b * residual[i];
      }
    }
  }
};

/// One frame's codes and scales of a segment.
template <class Format, unsigned kRow>
struct QuantizedSections {
  using Layout = typename Format::Layout;
  const std::byte* sections;
  Layout layout;

  /// The row at `position`, as whole numbers, and its scale; zeros behind the segment's end.
  TERSOR_DEVICE float load_row(std::size_t position, float (&codes)[kRow]) const {
    RowBytes<kRowCodeBytes<Format, kRow>> row = {};
    float scale = 0;
    if (position < layout.count) {
      row = decltype(row)::template load_from<Load::kInput>(sections + layout.codes_offset() +
                                                            position * Format::kBits / 8);
      scale = load_input(reinterpret_cast<const float*>(sections) + position / Format::kBlock);
    }
    unpack_codes<Format, kRow>(row, codes);
    return scale;
  }
};

template <class Format, typename T, DecodeMode kMode, unsigned kMostSegments, unsigned kMostFrames>
struct QuantizeDecodeKernel {
  static constexpr unsigned kThreads = kQuantizeThreads;
  static constexpr unsigned kResident = 4;
  static constexpr bool kScans = false;
  static constexpr unsigned kRow = 16 / sizeof(T);
  struct Shared {};

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
    float sum[kUnitChunks<kRow>][kRow] = {};
    if constexpr (kMode == DecodeMode::kAdd)
      TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
          load_row<Load::kAny>(output, place.row(chunk, aligned), sum[chunk]);
    if (sound) add_frames(segment, place, sum);
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] =
          sound ? sum[chunk][i] : float_of(kNanBits);
      store_row(sum[chunk], output, place.row(chunk, aligned));
    }
  }

  /// The first one is assigned as a product, where nothing was there before: -0 stays -0.
  TERSOR_DEVICE void add_frames(const DecodeEntry& segment, const UnitPlace<kRow>& place,
                                float (&sum)[kUnitChunks<kRow>][kRow]) const {
    for (unsigned index = 0; index < list.frames; ++index) {
      const QuantizedSections<Format, kRow> frame{list.payload(index) + segment.offset,
                                                  {segment.count}};
      const bool assigns = kMode == DecodeMode::kAssign && index == 0;
      TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        float codes[kRow];
        const float scale = frame.load_row(place.position(chunk), codes) * factor;
        TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] =
            assigns ? codes[i] * scale : fused_multiply_add(codes[i], scale, sum[chunk][i]);
      }
    }
  }
};

template <class Format, typename E, NoiseKind kKind, unsigned kMostSegments, unsigned kMostFrames>
struct QuantizeReduceKernel {
  static constexpr unsigned kThreads = kQuantizeThreads;
  static constexpr unsigned kResident = kKind == NoiseKind::kAny ? 2 : 3;
  static constexpr bool kScans = false;
  static constexpr unsigned kRow = 8;
  struct Shared {};
  using Unit = QuantizeUnit<Format, E, kKind, kRow>;

  SegmentTable<ReduceEntry, kMostSegments> table;
  FrameList<kMostFrames> list;
  std::byte* payload;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  std::uint64_t key;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    seal.write(block);
    const bool sound = list.check(block);
    const float b = words.residual_factor();
    const std::uint32_t step = kKind == NoiseKind::kNone ? 0 : words.step_of();
    for_each_unit(block, table.units, [&](std::uint32_t unit) {
      const ReduceEntry& segment = table.find(unit);
      const std::size_t first = std::size_t{unit - segment.first_unit} * kUnitValues;
      const Unit out = place_unit(segment, first, block.warp().thread_rank());
      float p[kUnitChunks<kRow>][kRow] = {};
      if (sound) add_frames(segment, out.place, p);
      add_residual(out, b, p);
      if (!sound) poison(p);
      const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + first, key, step,
                                        segment.parameter);
      out.write(block.warp(), p, noise);
    });
    next.write(block);
  }

 private:
  TERSOR_DEVICE Unit place_unit(const ReduceEntry& segment, std::size_t first,
                                unsigned thread) const {
    bool aligned = false;
    if constexpr (!std::is_same_v<E, NoResidual>)
      aligned = is_aligned_for<E, kRow>(segment.residual_in) &&
                is_aligned_for<E, kRow>(segment.residual_out);
    return {{first, segment.count, thread},
            payload + segment.offset,
            static_cast<const E*>(segment.residual_in),
            static_cast<E*>(segment.residual_out),
            aligned,
            false};
  }

  /// Codes behind the segment's end may be anything in a frame that came from elsewhere.
  TERSOR_DEVICE void add_frames(const ReduceEntry& segment, const UnitPlace<kRow>& place,
                                float (&sum)[kUnitChunks<kRow>][kRow]) const {
    TERSOR_UNROLL_4 for (unsigned index = 0; index < list.frames; ++index) {
      const QuantizedSections<Format, kRow> frame{list.payload(index) + segment.offset,
                                                  {segment.count}};
      TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        float codes[kRow];
        const float scale = frame.load_row(place.position(chunk), codes);
        TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] =
            fused_multiply_add(codes[i], scale, sum[chunk][i]);
      }
    }
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::size_t left = place.row(chunk, false).left;
      TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] =
          i < left ? sum[chunk][i] : 0.0f;
    }
  }

  TERSOR_DEVICE static void poison(float (&p)[kUnitChunks<kRow>][kRow]) {
    TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) p[chunk][0] =
        float_of(kNanBits);
  }

  TERSOR_DEVICE static void add_residual(const Unit& out, float b,
                                         float (&p)[kUnitChunks<kRow>][kRow]) {
    if constexpr (!std::is_same_v<E, NoResidual>) {
      TERSOR_UNROLL for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        float residual[kRow];
        load_row<Load::kAny>(out.residual_in, out.place.row(chunk, out.aligned), residual);
        TERSOR_UNROLL for (unsigned i = 0; i < kRow; ++i) p[chunk][i] =
            p[chunk][i] + b * residual[i];
      }
    }
  }
};

}  // namespace tersor::kernels
