// The kernels of quantising formats. A warp processes a unit of 512 values of one segment at a
// time, 16 values per thread. The values stay in registers between the single read and the single
// write.
//
// Grid: as many blocks of 256 threads as are resident. Each warp strides over the units, or
// processes consecutive units in long lists. Memory traffic in bytes per value, for f32:
//   Encode: 4 read and 1 (int4: 1/2) written. Error feedback adds 4 read and 4 written.
//   Decode: 1 (1/2) read per frame and 4 written.
//   Reduce: 1 (1/2) read per frame and 1 (1/2) written. The owner's residual adds 4 read and
//     4 written.
// Each block adds one scale of 4 bytes.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/decode_body.cuh"

#include <tersor/align.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// Computes the largest magnitude, as bits, of each block that contains a row of this thread.
template <class Format, unsigned kRow, class Warp>
TERSOR_DEVICE void block_maxima(const Warp& warp, const Rows<kRow>& p,
                                std::uint32_t (&maxima)[kUnitChunks<kRow>]) {
  // The signed maximum of the bits is the largest positive value. The unsigned maximum is the
  // negative value of largest magnitude. Only the sign of both maxima must be cleared.
  constexpr unsigned kChunk = kChunkValues<kRow>;
  TERSOR_UNROLL
  for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
    std::uint32_t negative = bits_of(p[chunk][0]);
    std::int32_t positive = static_cast<std::int32_t>(negative);
    TERSOR_UNROLL
    for (unsigned i = 1; i < kRow; ++i) {
      const std::uint32_t bits = bits_of(p[chunk][i]);
      const std::int32_t number = static_cast<std::int32_t>(bits);
      negative = bits > negative ? bits : negative;
      positive = number > positive ? number : positive;
    }
    const std::uint32_t a = negative & 0x7fffffffu;
    const std::uint32_t b = static_cast<std::uint32_t>(positive) & 0x7fffffffu;
    const std::uint32_t most = a > b ? a : b;
    maxima[chunk] = most;
  }
  if constexpr (Format::kBlock == 2 * kChunk) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; chunk += 2) {
      const std::uint32_t a = maxima[chunk], b = maxima[chunk + 1];
      maxima[chunk] = maxima[chunk + 1] = warp.maximum(a > b ? a : b);
    }
  } else if constexpr (Format::kBlock == kChunk) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
      maxima[chunk] = warp.maximum(maxima[chunk]);
  } else {
    static_assert(2 * Format::kBlock == kChunk);
    const bool low = warp.thread_rank() < 16;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::uint32_t first = warp.maximum(low ? maxima[chunk] : 0);
      const std::uint32_t second = warp.maximum(low ? 0 : maxima[chunk]);
      maxima[chunk] = low ? first : second;
    }
  }
}

/// This thread's rows of the residual of one unit.
template <typename E, unsigned kRow>
struct ResidualRows {
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;

  const E* in;
  E* out;
  bool aligned;

  /// Creates ResidualRows from an EncodeEntry or a ReduceEntry.
  template <class Entry>
  TERSOR_DEVICE static ResidualRows of(const Entry& segment) {
    bool aligned = false;
    if constexpr (kFeedback)
      aligned = is_aligned_for<E, kRow>(segment.residual_in) &&
                is_aligned_for<E, kRow>(segment.residual_out);
    return {static_cast<const E*>(segment.residual_in), static_cast<E*>(segment.residual_out),
            aligned};
  }

  /// p = a · p + b · residual.
  TERSOR_DEVICE void add_to(const UnitPosition<kRow>& position, float a, float b,
                            Rows<kRow>& p) const {
    if constexpr (kFeedback) {
      Rows<kRow> residual;
      load_rows<Load::kAny>(in, position, aligned, residual);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i) p[chunk][i] = a * p[chunk][i] + b * residual[chunk][i];
      }
    }
  }

  /// Stores the remainder of p as the new residual. Poisoned blocks keep the old residual.
  TERSOR_DEVICE void store_left(const UnitPosition<kRow>& position,
                                const BlockScale (&scales)[kUnitChunks<kRow>],
                                const Rows<kRow>& left) const {
    if constexpr (kFeedback) {
      bool poisoned = false;
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk)
        poisoned |= scales[chunk].poisoned;
      if (!poisoned) return store_rows(left, out, position, aligned);
      TERSOR_UNROLL
      for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
        const RowPosition row = position.row(chunk, aligned);
        if (!scales[chunk].poisoned)
          store_row(left[chunk], out, row);
        else if (in != out)
          copy_row<E, kRow>(in, out, row);
      }
    }
  }
};

/// Writes codes, scales and residual of one unit, for encode and reduce.
template <class Format, typename E, NoiseKind kKind, unsigned kRow>
struct QuantizeUnit {
  using Layout = typename Format::Layout;

  UnitPosition<kRow> position;
  std::byte* sections;  // of the segment
  ResidualRows<E, kRow> residual;
  bool keeps;  // True if all codes and scales are 0 and the residual is kept

  /// Creates a QuantizeUnit from an EncodeEntry or a ReduceEntry.
  template <class Entry>
  TERSOR_DEVICE static QuantizeUnit of(const Entry& segment, const UnitPosition<kRow>& position,
                                       std::byte* payload, bool keeps) {
    return {position, payload + segment.offset, ResidualRows<E, kRow>::of(segment), keeps};
  }

  template <class Warp>
  TERSOR_DEVICE void write(const Warp& warp, const Rows<kRow>& p,
                           const RowNoise<kKind, kRow>& noise) const {
    std::uint32_t maxima[kUnitChunks<kRow>];
    block_maxima<Format, kRow>(warp, p, maxima);
    BlockScale scales[kUnitChunks<kRow>];
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool shares = Format::kBlock > kChunkValues<kRow> && chunk % 2 == 1;
      scales[chunk] =
          shares ? scales[chunk - 1] : block_scale<Format>(keeps ? kInfinityBits : maxima[chunk]);
    }
    store_scales(scales);
    Rows<kRow> left;
    quantize(p, scales, noise, left);
    residual.store_left(position, scales, left);
    pad_scales();
  }

 private:
  TERSOR_DEVICE void store_scales(const BlockScale (&scales)[kUnitChunks<kRow>]) const {
    constexpr unsigned kChunk = kChunkValues<kRow>;
    const unsigned row = position.thread * kRow, end = position.values();
    if (row % Format::kBlock != 0) return;
    float* to = reinterpret_cast<float*>(sections) + (position.first + row) / Format::kBlock;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      if (chunk * kChunk % Format::kBlock == 0 && position.index(chunk) < end)
        store(to + chunk * kChunk / Format::kBlock, keeps ? 0.0f : scales[chunk].scale);
    }
  }

  /// Writes the padding after the scales, together with the segment's last unit.
  TERSOR_DEVICE void pad_scales() const {
    if (position.count - position.first > kUnitValues) return;
    const std::size_t block = Layout{position.count}.blocks() + position.thread;
    if (block * sizeof(float) < Layout{position.count}.codes_offset())
      store(reinterpret_cast<float*>(sections) + block, 0.0f);
  }

  /// Writes the codes and their padding, and sets `left` to the remainder of p.
  TERSOR_DEVICE void quantize(const Rows<kRow>& p, const BlockScale (&scales)[kUnitChunks<kRow>],
                              const RowNoise<kKind, kRow>& noise, Rows<kRow>& left) const {
    std::byte* to =
        sections + Layout{position.count}.codes_offset() + position.offset(0) * Format::kBits / 8;
    const unsigned end = (position.values() * Format::kBits + 127) / 128 * 16;  // bytes of the unit
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      float decoded[kRow];
      auto codes = RowCodes<Format>::code(p[chunk], scales[chunk], noise, chunk, decoded);
      if (scales[chunk].poisoned) codes = {};
      if (position.index(chunk) * Format::kBits / 8 < end)
        codes.store_to(to + chunk * kChunkValues<kRow> * Format::kBits / 8);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) left[chunk][i] = p[chunk][i] - decoded[i];
    }
  }
};

/// Loads p of a unit of one segment.
template <typename G, typename E, unsigned kRow>
TERSOR_DEVICE void load_sent(const EncodeEntry& segment, const ResidualRows<E, kRow>& residual,
                             const UnitPosition<kRow>& position, float a, float b, Rows<kRow>& p) {
  const auto* gradient = static_cast<const G*>(segment.gradient);
  load_rows<Load::kInput>(gradient, position, is_aligned_for<G, kRow>(gradient), p);
  residual.add_to(position, a, b, p);
}

/// Adds the bytes written by a warp for a segment's values [first, end) to the frame's sum.
template <class Format, class Sum, class Entry>
TERSOR_DEVICE void sum_written_blocks(const Sum& sum, const Entry& segment, std::size_t first,
                                      std::size_t end) {
  const std::size_t codes = segment.offset + typename Format::Layout{segment.count}.codes_offset();
  static_assert(kUnitValues % (2 * Format::kBlock) == 0);  // unit scales come in pairs
  sum.add_bytes(segment.offset + first / Format::kBlock * sizeof(float),
                segment.offset + align_up(ceil_div(end, Format::kBlock) * sizeof(float), 8));
  sum.add_bytes(codes + first * Format::kBits / 8,
                codes + align_up(ceil_div(end * Format::kBits, 8), 16));
}

template <class Format, typename G, typename E, NoiseKind kKind, unsigned kMost>
struct QuantizeEncodeKernel : UnitKernel {
  static constexpr unsigned kResident = kQuantizeEncodeResident<G, E, kKind, kMost>;
  static constexpr unsigned kRow = 16 / sizeof(G);
  struct Shared {
    ThreadSums<kThreads> written;
  };

  SegmentTable<EncodeEntry, kMost> table;
  std::byte* payload;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  std::uint64_t key;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    const float a = words.gradient_factor(), b = words.residual_factor();
    const std::uint32_t step = kKind == NoiseKind::kNone ? 0 : words.step_of();
    const WrittenSum < Block, kResident<5 ? 2 : 1> sum(block, seal, shared.written);
    for_each_position<kRow>(
        block, table, DoNothing{},
        [&](const EncodeEntry& segment, const UnitPosition<kRow>& position) {
          const auto out = QuantizeUnit<Format, E, kKind, kRow>::of(segment, position, payload,
                                                                    is_inactive(segment));
          Rows<kRow> p;
          load_sent<G>(segment, out.residual, position, a, b, p);
          const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + position.first, key,
                                            step, segment.parameter);
          out.write(block.warp(), p, noise);
        },
        [&](const EncodeEntry& segment, std::size_t first, std::size_t end) {
          sum_written_blocks<Format>(sum, segment, first, end);
        });
    sum.leave();
    next.write(block);
    seal.close(block);
  }
};

template <class Format, typename E, NoiseKind kKind, unsigned kMostSegments, unsigned kMostFrames>
struct QuantizeReduceKernel : UnitKernel {
  static constexpr unsigned kResident = kReduceResident<kKind>;
  static constexpr unsigned kRow = 8;
  struct Shared {
    ThreadSums<kThreads> written;
    ThreadSums<kThreads> read;
  };

  SegmentTable<ReduceEntry, kMostSegments> table;
  FrameList<kMostFrames> list;
  std::byte* payload;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  std::uint64_t key;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    const bool sound = list.check(block);
    const float b = words.residual_factor();
    const std::uint32_t step = kKind == NoiseKind::kNone ? 0 : words.step_of();
    const ReadSums sums(block, list, sound, shared.read);
    const WrittenSum written(block, seal, shared.written);
    for_each_position<kRow>(
        block, table,
        [&](std::uint32_t round, unsigned iteration) { sums.add_round(round, iteration); },
        [&](const ReduceEntry& segment, const UnitPosition<kRow>& position) {
          const auto out =
              QuantizeUnit<Format, E, kKind, kRow>::of(segment, position, payload, false);
          Rows<kRow> p = {};
          if (sound) add_all_frames(segment, position, p);
          out.residual.add_to(position, 1.0f, b, p);
          if (!sound) poison(p);
          const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + position.first, key,
                                            step, segment.parameter);
          out.write(block.warp(), p, noise);
        },
        [&](const ReduceEntry& segment, std::size_t first, std::size_t end) {
          sum_written_blocks<Format>(written, segment, first, end);
        });
    next.write(block);
    written.leave();
    close_reduced<E>(block, table, sums, list, seal);
  }

 private:
  /// Adds all frames of a unit. Codes after the segment's end may be arbitrary in a received frame.
  TERSOR_DEVICE void add_all_frames(const ReduceEntry& segment, const UnitPosition<kRow>& position,
                                    Rows<kRow>& sum) const {
    const QuantizedRows<Format, kRow> rows(position, segment.offset);
    if (position.is_whole()) return add_frames<UnitKind::kWhole>(rows, sum);
    add_frames<UnitKind::kPart>(rows, sum);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const std::size_t left = position.row(chunk, false).left;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) sum[chunk][i] = i < left ? sum[chunk][i] : 0.0f;
    }
  }

  template <UnitKind kUnit>
  TERSOR_DEVICE void add_frames(const QuantizedRows<Format, kRow>& rows, Rows<kRow>& sum) const {
    TERSOR_UNROLL_4
    for (unsigned index = 0; index < list.frames; ++index)
      rows.template add<kUnit>(list.payload(index), factor, sum);
  }

  TERSOR_DEVICE static void poison(Rows<kRow>& p) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) p[chunk][0] = float_of(kNanBits);
  }
};

}  // namespace tersor::kernels
