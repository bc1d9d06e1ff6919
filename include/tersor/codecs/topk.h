/// topk: exactly the k values of largest magnitude, with their indices (Strom 2015; Lin et al.,
/// Deep Gradient Compression, 2018; Stich et al., Sparsified SGD with Memory, 2018).
///
/// Payload  first          u32[tiles + 1]: for each tile of 65,536 values, the number of selected
///                         values before the tile; the last entry is the number of all selected
///                         values, at most k
///          index_in_tile  u16[k], in ascending order of index
///          scales         f32[ceil(k / 256)], only if values are int8
///          values         f32[k], bf16[k], or int8 codes [k]
///          each padded to 16 bytes; unused entries are 0.
/// Header   parameters: the density as f64; flags: the type of the values.
/// Selected the k largest magnitudes, ties to the lowest index, never a zero;
///          k = min(count, max(1, ceil(density * count))) for each segment.
/// Error    the values that are not sent; "+ef" keeps them and the rounding error in the residual.
///
/// A tensor with a NaN or an infinity sends k NaNs at the indices 0 ... k - 1.
#pragma once

#include <tersor/align.h>
#include <tersor/dtype.h>
#include <tersor/wire.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tersor {

/// The codec's number in the wire format.
inline constexpr std::uint16_t kTopkCodecId = 6;

/// The type of the sent values. The number is stored in the frame's flags from bit kCodecFlagShift
/// on.
enum class TopkValues : std::uint8_t { kF32 = 0, kBf16 = 1, kInt8 = 2 };

/// Options of the spec topk[:density=(0, 1],values=f32|bf16|int8].
struct TopkOptions {
  double density = 0.01;                 ///< fraction of the values that are sent
  TopkValues values = TopkValues::kF32;  ///< type of the sent values
};

/// Returns k, the number of sent values of a segment.
constexpr std::size_t topk_selected(std::size_t count, double density) {
  const double wanted = density * static_cast<double>(count);
  const auto floor = static_cast<std::size_t>(wanted);
  const std::size_t ceiling = floor + (static_cast<double>(floor) < wanted ? 1 : 0);
  return std::min(count, std::max<std::size_t>(1, ceiling));
}
static_assert(topk_selected(0, 0.01) == 0 && topk_selected(1, 0.01) == 1 &&
              topk_selected(101, 0.01) == 2);

/// The section offsets of a segment's topk payload, in bytes.
struct TopkLayout {
  static constexpr std::size_t kTile = 65536;  ///< values with a common index base
  static constexpr std::size_t kBlock = 256;   ///< selected values per scale (int8)
  std::size_t count;                           ///< values of the segment
  std::size_t selected;                        ///< k, the capacity
  TopkValues values;                           ///< type of the sent values

  /// Returns the number of tiles.
  constexpr std::size_t tiles() const { return ceil_div(count, kTile); }
  /// Returns the number of scales.
  constexpr std::size_t blocks() const {
    return values == TopkValues::kInt8 ? ceil_div(selected, kBlock) : 0;
  }
  /// Returns the size of a sent value.
  constexpr std::size_t value_bytes() const {
    return values == TopkValues::kF32 ? 4 : values == TopkValues::kBf16 ? 2 : 1;
  }
  /// Returns the size of `first`, without padding.
  constexpr std::size_t first_bytes() const { return (tiles() + 1) * sizeof(std::uint32_t); }
  /// Returns the offset of the indices.
  constexpr std::size_t index_offset() const { return align_up(first_bytes(), kSectionAlignment); }
  /// Returns the size of the indices, without padding.
  constexpr std::size_t index_bytes() const { return selected * sizeof(std::uint16_t); }
  /// Returns the offset of the scales.
  constexpr std::size_t scales_offset() const {
    return index_offset() + align_up(index_bytes(), kSectionAlignment);
  }
  /// Returns the size of the scales, without padding.
  constexpr std::size_t scales_bytes() const { return blocks() * sizeof(float); }
  /// Returns the offset of the values.
  constexpr std::size_t values_offset() const {
    return scales_offset() + align_up(scales_bytes(), kSectionAlignment);
  }
  /// Returns the size of the values, without padding.
  constexpr std::size_t values_bytes() const { return selected * value_bytes(); }
  /// Returns the size of the payload.
  constexpr std::size_t bytes() const {
    return values_offset() + align_up(values_bytes(), kSectionAlignment);
  }
};
static_assert(TopkLayout{1000, 10, TopkValues::kF32}.bytes() == 16 + 32 + 48);
static_assert(TopkLayout{1000, 10, TopkValues::kInt8}.bytes() == 16 + 32 + 16 + 16);
static_assert(TopkLayout{65537, 656, TopkValues::kBf16}.index_offset() == 16);

}  // namespace tersor
