// The encode kernel of quantising formats. Grid and memory traffic are described in
// kernels/quantize/body.cuh.
#pragma once

#include "kernels/device/frame_kernels.cuh"
#include "kernels/device/noise.cuh"
#include "kernels/quantize/tile.cuh"
#include "kernels/quantize/tuning.cuh"
#include "kernels/quantize/unit.cuh"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace tersor::kernels {

/// Encodes values of type G with residuals of type E. See EncodeFrame.
template <class Format, typename G, typename E, NoiseKind kKind>
struct QuantizeCoder {
  using Order = RangeOrder;
  using Policy = QuantizeEncodePolicy<Format, E, kKind>;
  using Tile = EncodeTile<Format, G>;
  using Sections = QuantizedSections<Format>;
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;
  static constexpr unsigned kRow = Tile::kRow, kRows = Tile::kRows;
  struct Shared {
    TileNoise<kKind, Policy::kThreads> noise;
  };

  std::byte* payload;
  std::uint64_t key;

  template <class Block>
  class Pass {
   public:
    TERSOR_DEVICE Pass(const QuantizeCoder& coder, const Block& block, const CallWords& words,
                       Shared& shared)
        : coder_(coder),
          block_(block),
          noise_(shared.noise),
          a_(words.gradient_factor()),
          b_(words.residual_factor()),
          step_(kKind == NoiseKind::kNone ? 0 : words.step_of()) {}

    template <class Sum>
    TERSOR_DEVICE void encode(const EncodeEntry& segment, std::size_t first, const Sum& sum) {
      if constexpr (kKind != NoiseKind::kAny && Format::kBlock == Tile::kBlock) {
        bool whole =
            segment.count - first >= kTileValues && is_aligned_for<G, kRow>(segment.gradient);
        if constexpr (kFeedback)
          whole = whole && is_aligned_for<E, kRow>(segment.residual_in) &&
                  is_aligned_for<E, kRow>(segment.residual_out);
        if (whole) return encode_tile(segment, first, sum);
      }
      TERSOR_KEEP_LOOP
      for (unsigned unit = 0; unit < kTileValues; unit += kUnitValues)
        if (first + unit < segment.count) encode_unit(segment, first + unit);
      if (sum.is_enabled())
        Sections::of(segment).sum_codes(sum, first, end_of_tile(segment, first));
    }

    template <class Sum>
    TERSOR_DEVICE void flush(const Sum& sum) {
      if (sum.is_enabled()) sum.add(thread_columns_.take(own_word()));
    }

   private:
    TERSOR_DEVICE Tile tile() const { return {block_.warp().thread_rank()}; }
    TERSOR_DEVICE unsigned own_word() const { return tile().index(0) * Format::kBits / 32; }

    /// Encodes up to 512 values at any address.
    TERSOR_DEVICE void encode_unit(const EncodeEntry& segment, std::size_t first) const {
      constexpr unsigned kShort = 16 / sizeof(G);
      const UnitPosition<kShort> position{first, segment.count, block_.warp().thread_rank()};
      const auto out = QuantizeUnit<Format, E, kKind, kShort>::of(segment, position, coder_.payload,
                                                                  is_inactive(segment));
      Rows<kShort> p;
      load_sent<G>(segment, out.residual, position, a_, b_, p);
      const RowNoise<kKind, kShort> noise(block_.warp(), segment.first_index + first, coder_.key,
                                          step_, segment.parameter);
      out.write(block_.warp(), p, noise);
    }

    /// Encodes 1,024 values whose addresses are multiples of 16.
    template <class Sum>
    TERSOR_DEVICE void encode_tile(const EncodeEntry& segment, std::size_t first, const Sum& sum) {
      const Tile tile = this->tile();
      const bool keeps = is_inactive(segment);
      const auto* gradient =
          base_address(static_cast<const G*>(segment.gradient) + first + tile.index(0));
      typename Tile::Raw raw[kRows];
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row)
        raw[row] = Tile::Raw::template load_from<Load::kInput>(gradient + row * Tile::kStep);
      if constexpr (kKind != NoiseKind::kNone)
        noise_.draw(block_.warp(), block_.warp_rank(), segment.first_index + first, coder_.key,
                    step_, segment.parameter);
      float p[kFeedback ? kRows : 1][kRow];
      std::uint32_t most = 0;
      if constexpr (kFeedback) {
        add_residual(segment, first, raw, p);
        most = Tile::largest(p);
      } else {
        most = Tile::largest(raw);
      }
      most = Tile::of_block(block_.warp(), most);
      const BlockScale scale = tile_scale<Format>(keeps ? kInfinityBits : most);
      if (scale.poisoned) {  // rare: all codes become 0
        asm volatile("");    // keeps the branch
        TERSOR_UNROLL
        for (unsigned row = 0; row < kRows; ++row) {
          raw[row] = {};
          if constexpr (kFeedback) std::memset(p[row], 0, sizeof p[row]);
        }
      }
      const Sections sections = Sections::of(segment);
      if (tile.is_first_of_block())
        store(reinterpret_cast<float*>(coder_.payload + sections.scale_of(first + tile.index(0))),
              keeps ? 0.0f : scale.scale);
      const std::size_t codes = sections.codes_of(first);
      std::byte* to = base_address(coder_.payload + codes + tile.index(0) * Format::kBits / 8);
      typename ThreadColumns<typename Tile::WordLayout>::Words words;
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row) {
        float values[kRow], decoded[kRow];
        if constexpr (kFeedback)
          std::memcpy(values, p[row], sizeof values);
        else
          unpack_row<G>(raw[row], values);
        const typename Tile::Codes coded =
            RowCodes<Format>::code(values, scale, row_noise(row), row % kUnitChunks<kRow>, decoded);
        coded.store_to(to + row * Tile::kStep * Format::kBits / 8);
        std::memcpy(words + row * Tile::kRowWords, &coded, sizeof coded);
        if constexpr (kFeedback) {
          TERSOR_UNROLL
          for (unsigned i = 0; i < kRow; ++i) p[row][i] = values[i] - decoded[i];
        }
      }
      if constexpr (kFeedback) store_remainder(segment, first, scale.poisoned, p);
      if (sum.is_enabled()) add_codes(segment, first, codes, words, sum);
    }

    /// p = a · gradient + b · residual.
    TERSOR_DEVICE void add_residual(const EncodeEntry& segment, std::size_t first,
                                    const typename Tile::Raw (&raw)[kRows],
                                    float (&p)[kRows][kRow]) const {
      using Bytes = RowBytes<kRow * sizeof(E)>;
      const auto* residual =
          base_address(static_cast<const E*>(segment.residual_in) + first + tile().index(0));
      Bytes rows[kRows];
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row)
        rows[row] = Bytes::template load_from<Load::kAny>(residual + row * Tile::kStep);
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row) {
        float left[kRow];
        unpack_row<G>(raw[row], p[row]);
        unpack_row<E>(rows[row], left);
        TERSOR_UNROLL
        for (unsigned i = 0; i < kRow; ++i) p[row][i] = a_ * p[row][i] + b_ * left[i];
      }
    }

    /// Stores the remainder as the new residual. Poisoned blocks keep the old residual.
    TERSOR_DEVICE void store_remainder(const EncodeEntry& segment, std::size_t first, bool poisoned,
                                       const float (&left)[kRows][kRow]) const {
      using Bytes = RowBytes<kRow * sizeof(E)>;
      const std::size_t at = first + tile().index(0);
      E* to = base_address(static_cast<E*>(segment.residual_out) + at);
      if (!poisoned) {
        TERSOR_UNROLL
        for (unsigned row = 0; row < kRows; ++row)
          pack_row<E>(left[row]).store_to(to + row * Tile::kStep);
        return;
      }
      if (segment.residual_in == segment.residual_out) return;
      const E* from = static_cast<const E*>(segment.residual_in) + at;
      TERSOR_KEEP_LOOP
      for (unsigned row = 0; row < kRows; ++row)
        Bytes::template load_from<Load::kAny>(from + row * Tile::kStep)
            .store_to(to + row * Tile::kStep);
    }

    TERSOR_DEVICE RowNoise<kKind, kRow> row_noise(unsigned row) const {
      constexpr unsigned kWords = kRow / 4;
      std::uint32_t words[4] = {};
      TERSOR_UNROLL
      for (unsigned i = 0; i < kWords; ++i)
        words[row % kUnitChunks<kRow> * kWords + i] =
            noise_.word(block_.warp_rank(), tile().index(row) + 4 * i);
      return RowNoise<kKind, kRow>(words);
    }

    /// Adds the codes of a tile to the frame's sum.
    template <class Sum>
    TERSOR_DEVICE void add_codes(
        const EncodeEntry& segment, std::size_t first, std::size_t codes,
        const typename ThreadColumns<typename Tile::WordLayout>::Words& words, const Sum& sum) {
      const std::uint64_t word = (sizeof(FrameHeader) + codes) / sizeof(std::uint32_t);
      if (thread_columns_.holds(word, kTileValues * Format::kBits / 32))
        thread_columns_.add(word, own_word(), words, [&](std::uint64_t part) { sum.add(part); });
      else
        Sections::of(segment).sum_codes(sum, first, first + kTileValues);
    }

    const QuantizeCoder& coder_;
    const Block& block_;
    TileNoise<kKind, Policy::kThreads>& noise_;
    float a_, b_;
    std::uint32_t step_;
    ThreadColumns<typename Tile::WordLayout> thread_columns_;
  };

  template <class Block>
  TERSOR_DEVICE Pass<Block> begin(const Block& block, const CallWords& words,
                                  Shared& shared) const {
    return {*this, block, words, shared};
  }

  /// Adds the scales. encode adds the codes.
  template <class Sum>
  TERSOR_DEVICE static void sum_written(const Sum& sum, const EncodeEntry& segment,
                                        std::size_t first, std::size_t end) {
    Sections::of(segment).sum_scales(sum, first, end, segment.count);
  }
};

template <class Format, typename G, typename E, NoiseKind kKind, unsigned kCapacity>
using QuantizeEncodeKernel = EncodeFrame<QuantizeCoder<Format, G, E, kKind>, kCapacity>;

}  // namespace tersor::kernels
