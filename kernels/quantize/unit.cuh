// A unit of 512 values at any address, encoded by a warp: 16 values per thread, which stay in
// registers between the single read and the single write.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/rows.cuh"

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
  } else if constexpr (2 * Format::kBlock < kChunk) {
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      TERSOR_UNROLL
      for (unsigned mask = Format::kBlock / kRow / 2; mask != 0; mask /= 2) {
        const std::uint32_t other = warp.shuffle_xor(maxima[chunk], mask);
        maxima[chunk] = maxima[chunk] > other ? maxima[chunk] : other;
      }
    }
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
  TERSOR_DEVICE void store_remainder(const UnitPosition<kRow>& position,
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
  using Scale = typename Format::Scale;
  using Stored = typename Scale::Stored;

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
    const auto segment_scale = segment_scale_of<Format>(sections);
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      const bool shares = Format::kBlock > kChunkValues<kRow> && chunk % 2 == 1;
      scales[chunk] =
          shares ? scales[chunk - 1]
                 : block_scale<Format>(keeps ? kInfinityBits : maxima[chunk], segment_scale);
    }
    store_scales(scales);
    Rows<kRow> left;
    quantize(p, scales, noise, left);
    residual.store_remainder(position, scales, left);
    pad_scales();
  }

 private:
  TERSOR_DEVICE void store_scales(const BlockScale (&scales)[kUnitChunks<kRow>]) const {
    constexpr unsigned kChunk = kChunkValues<kRow>;
    const unsigned row = position.thread * kRow, end = position.values();
    if (row % Format::kBlock != 0) return;
    auto* to = reinterpret_cast<Stored*>(sections + Layout{position.count}.scales_offset()) +
               (position.first + row) / Format::kBlock;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      if (chunk * kChunk % Format::kBlock == 0 && position.index(chunk) < end)
        store(to + chunk * kChunk / Format::kBlock,
              keeps ? Stored{} : Scale::stored(scales[chunk]));
    }
  }

  /// Writes the padding after the scales, together with the segment's last unit.
  TERSOR_DEVICE void pad_scales() const {
    if (position.count - position.first > kUnitValues) return;
    const Layout layout{position.count};
    const std::size_t at =
        layout.scales_offset() + (layout.blocks() + position.thread) * sizeof(Stored);
    if (at < layout.codes_offset()) store(reinterpret_cast<Stored*>(sections + at), Stored{});
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

}  // namespace tersor::kernels
