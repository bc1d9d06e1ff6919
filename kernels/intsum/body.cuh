// The kernels of intsum. As in kernels/quantize/body.cuh, a warp processes a unit of 512 values
// (two blocks) of one segment at a time. Memory traffic in bytes per value, for f32:
//   Maxima: 4 read, or 8 with feedback.
//   Codes: 4 read and 1, 2 or 4 written. Error feedback adds 4 read and 4 written.
//   Decode: 1, 2 or 4 read and 4 written. Adding to the output adds 4 read.
#pragma once

#include "kernels/device/device_call.cuh"
#include "kernels/intsum/codes.cuh"
#include "kernels/intsum/formulas.h"
#include "kernels/intsum/offsets.h"
#include "kernels/quantize/body.cuh"

namespace tersor::kernels {

/// `offset` counts raw codes.
struct IntsumEncodeEntry : EncodeEntry {
  std::uint64_t first_block;
};
struct IntsumDecodeEntry : DecodeEntry {
  std::uint64_t first_block;
};
inline IntsumEncodeEntry entry_of(const EncodeCall& call, std::size_t i,
                                  const IntsumOffset& offset) {
  return {entry_of(call, i, offset.codes), offset.maxima};
}
inline IntsumDecodeEntry entry_of(const DecodeCall& call, std::size_t i,
                                  const IntsumOffset& offset) {
  return {entry_of(call, i, offset.codes), offset.maxima};
}

/// Returns the index within the call of the block that contains a row of chunk `chunk`.
template <class Entry, unsigned kRow>
TERSOR_DEVICE std::uint64_t block_of(const Entry& segment, const UnitPosition<kRow>& position,
                                     unsigned chunk) {
  return segment.first_block + (position.first + chunk * kChunkValues<kRow>) / kIntsumBlock;
}

/// True if a block of the segment starts or continues in a chunk.
template <unsigned kRow>
TERSOR_DEVICE bool has_block(const UnitPosition<kRow>& position, unsigned chunk) {
  return chunk * kChunkValues<kRow> / kIntsumBlock * kIntsumBlock < position.values();
}

template <typename G, typename E>
struct IntsumMaximaKernel : UnitKernel {
  static constexpr unsigned kResident = kEncodeResident<E, NoiseKind::kNone>;
  static constexpr unsigned kRow = 16 / sizeof(G);

  SegmentTable<IntsumEncodeEntry, kShortListSegments> table;
  std::uint32_t* maxima;
  CallWords words;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    const float a = words.gradient_factor(), b = words.residual_factor();
    for_each_unit<kRow>(block, table,
                        [&](const IntsumEncodeEntry& segment, const UnitPosition<kRow>& position) {
                          write_unit(block.warp(), segment, position, a, b);
                        });
  }

 private:
  template <class Warp>
  TERSOR_DEVICE void write_unit(const Warp& warp, const IntsumEncodeEntry& segment,
                                const UnitPosition<kRow>& position, float a, float b) const {
    Rows<kRow> p;
    load_sent<G>(segment, ResidualRows<E, kRow>::of(segment), position, a, b, p);
    std::uint32_t largest[kUnitChunks<kRow>];
    block_maxima<IntsumBytes, kRow>(warp, p, largest);
    if (position.thread != 0) return;
    const bool inactive = is_inactive(segment);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool begins = chunk * kChunkValues<kRow> % kIntsumBlock == 0;
      if (begins && has_block(position, chunk))
        store(maxima + block_of(segment, position, chunk),
              inactive ? 0u : sent_maximum(largest[chunk], factor));
    }
  }
};

/// A kernel over all blocks, independent of segments. A thread processes one block at a time.
struct IntsumBlocksKernel : LaunchBounds<256, 4> {
  std::size_t count;

  template <class Block, class Visit>
  TERSOR_DEVICE void for_each(const Block& block, const Visit& visit) const {
    const std::size_t threads = std::size_t{block.blocks()} * block.threads();
    std::size_t at = std::size_t{block.rank()} * block.threads() + block.thread_rank();
    for (; at < count; at += threads) visit(at);
  }
};

/// Computes scales from the maximum over the ranks' maxima.
struct IntsumScalesKernel : IntsumBlocksKernel {
  const std::uint32_t* maxima;
  float* scales;
  float levels;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each(block, [&](std::size_t at) {
      store(scales + at, shared_scale(load_input(maxima + at), levels));
    });
  }
};

/// Replaces the largest magnitudes by scales and writes flags of type `Flag`. Used for blocks whose
/// scale is given in the spec.
template <typename Flag>
struct IntsumFlagKernel : IntsumBlocksKernel {
  float* maxima_to_scales;
  Flag* flags;
  float scale;
  bool encodes;  // False: scales are computed from flags

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each(block, [&](std::size_t at) {
      const bool flagged =
          encodes ? is_flagged(bits_of(load(maxima_to_scales + at))) : load_input(flags + at) != 0;
      if (encodes) store(flags + at, static_cast<Flag>(flagged));
      store(maxima_to_scales + at, fixed_scale(flagged, scale));
    });
  }
};

/// Computes a row's codes, and the remainder of p.
template <NoiseKind kKind, unsigned kRow>
TERSOR_DEVICE void code_row(const float (&p)[kRow], const BlockScale& scale, float levels,
                            const RowNoise<kKind, kRow>& noise, unsigned chunk,
                            std::uint32_t (&codes)[kRow], float (&left)[kRow]) {
  const float most = levels * scale.scale;
  TERSOR_UNROLL
  for (unsigned i = 0; i < kRow; ++i) {
    std::int32_t code;
    const float clamped = p[i] < -most ? -most : p[i] > most ? most : p[i];
    if constexpr (kKind == NoiseKind::kNone)
      code = nearest_code(nearest_sum(clamped, scale.inverse));
    else
      code = stochastic_code(clamped, scale.inverse, noise.at(chunk, i));
    codes[i] = scale.poisoned ? 0u : static_cast<std::uint32_t>(code);
    left[i] = p[i] - float_of_small(code) * scale.scale;
  }
}

template <typename G, typename E, NoiseKind kKind>
struct IntsumEncodeKernel : UnitKernel {
  static constexpr unsigned kResident = kEncodeResident<E, kKind>;
  static constexpr unsigned kRow = 16 / sizeof(G);

  SegmentTable<IntsumEncodeEntry, kShortListSegments> table;
  std::byte* codes;
  const float* scales;
  CallWords words;
  NextWords next;
  std::uint64_t key;
  float factor;
  float levels;
  AccumulatorBits accumulator_bits;
  unsigned code_bytes;  // bytes per raw value

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    const float a = words.gradient_factor(), b = words.residual_factor();
    const std::uint32_t step = kKind == NoiseKind::kNone ? 0 : words.step_of();
    for_each_unit<kRow>(
        block, table, [&](const IntsumEncodeEntry& segment, const UnitPosition<kRow>& position) {
          Rows<kRow> p;
          load_sent<G>(segment, ResidualRows<E, kRow>::of(segment), position, a, b, p);
          const RowNoise<kKind, kRow> noise(block.warp(), segment.first_index + position.first, key,
                                            step, segment.parameter);
          write_unit(segment, position, noise, p);
        });
    next.write(block);
  }

 private:
  using Scales = BlockScale[kUnitChunks<kRow>];

  TERSOR_DEVICE void load_scales(const IntsumEncodeEntry& segment,
                                 const UnitPosition<kRow>& position, Scales& own) const {
    const bool inactive = is_inactive(segment);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool continues_block = chunk * kChunkValues<kRow> % kIntsumBlock != 0;
      own[chunk] = continues_block ? own[chunk - 1] : BlockScale{0.0f, 0.0f, false};
      if (continues_block || !has_block(position, chunk)) continue;
      own[chunk] = own_scale(load_input(scales + block_of(segment, position, chunk)), factor);
      own[chunk].poisoned |= inactive;
    }
  }

  TERSOR_DEVICE void write_unit(const IntsumEncodeEntry& segment,
                                const UnitPosition<kRow>& position,
                                const RowNoise<kKind, kRow>& noise, const Rows<kRow>& p) const {
    Scales own;
    load_scales(segment, position, own);
    Rows<kRow> left;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      std::uint32_t row[kRow];
      code_row(p[chunk], own[chunk], levels, noise, chunk, row, left[chunk]);
      store_codes<kRow>(row, accumulator_bits,
                        {codes + segment.offset * code_bytes, position.row(chunk, false)});
    }
    ResidualRows<E, kRow>::of(segment).store_remainder(position, own, left);
  }
};

template <typename T>
struct IntsumDecodeKernel : UnitKernel {
  static constexpr unsigned kResident = kQuantizeResident.units;
  static constexpr unsigned kRow = 16 / sizeof(T);

  SegmentTable<IntsumDecodeEntry, kShortListSegments> table;
  const std::byte* codes;
  const float* scales;
  float factor;
  DecodeMode mode;
  AccumulatorBits accumulator_bits;
  unsigned code_bytes;  // bytes per raw value

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    for_each_unit<kRow>(block, table,
                        [&](const IntsumDecodeEntry& segment, const UnitPosition<kRow>& position) {
                          decode_unit(segment, position);
                        });
  }

 private:
  TERSOR_DEVICE void decode_unit(const IntsumDecodeEntry& segment,
                                 const UnitPosition<kRow>& position) const {
    auto* output = static_cast<T*>(segment.output);
    const bool aligned = is_aligned_for<T, kRow>(output);
    Rows<kRow> sum;
    if (mode == DecodeMode::kAdd)
      load_rows<Load::kAny>(output, position, aligned, sum);
    else  // adding to -0 keeps products and their signs
      fill_rows<kRow>(sum, -0.0f);
    auto* base = const_cast<std::byte*>(codes) + segment.offset * code_bytes;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      if (!has_block(position, chunk)) continue;
      const float scale = load_input(scales + block_of(segment, position, chunk)) * factor;
      float row[kRow];
      load_sums<kRow>({base, position.row(chunk, false)}, accumulator_bits, row);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i)
        sum[chunk][i] = fused_multiply_add(row[i], scale, sum[chunk][i]);
    }
    store_rows(sum, output, position, aligned);
  }
};

}  // namespace tersor::kernels
