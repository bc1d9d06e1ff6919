// Adds the payloads of a range, tile by tile in registers, for one instruction set.
#if defined(TERSOR_KERNELS_QUANTIZE_PAYLOADS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_PAYLOADS_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_PAYLOADS_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_PAYLOADS_INL_H_
#endif

#include "kernels/host/tiles-inl.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/vectors-inl.h"

#include <algorithm>
#include <cstddef>
#include <span>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Returns the number of bytes for the codes of `count` values.
template <class Format>
constexpr std::size_t code_bytes(std::size_t count) {
  return (count * Format::kBits + 7) / 8;
}

/// Returns the number of a segment from the segment's largest magnitude.
template <class Format>
HWY_INLINE typename Format::Scale::SegmentScale segment_scale_of(
    [[maybe_unused]] const void* largest) {
  float magnitude = 0;
  if constexpr (kHasSegmentScale<Format>) std::memcpy(&magnitude, largest, sizeof magnitude);
  return Format::Scale::SegmentScale::of(magnitude);
}

/// The payloads of a range. Codes are accessed in whole tiles.
template <class Format>
class Payloads {
 public:
  Payloads(std::span<const QuantizedView> views, std::size_t count)
      : views_(views), count_(count) {}

  std::size_t ranks() const { return views_.size(); }

  /// Sums the tile at `first` and returns visit(sum_of). Calling sum_of(index, sum) computes the
  /// sums of kGroup values from `index` on. The callback start(index) returns the initial vector,
  /// and all ranks are added in order. If kOne is true, only one rank exists, and the decoding
  /// state is kept from tile to tile.
  template <bool kOne = false, class Start, class Visit>
  HWY_INLINE auto visit(std::size_t first, float factor, const Start& start, const Visit& visit) {
    Position position{0, first, factor};
    if constexpr (kOne) return visit(sum<1>(position, start));
    for (; position.rank + kMaxRanks < ranks(); position.rank += kMaxRanks) add(position, start);
    if (ranks() == 0) return visit(sum<0>(position, start));
    if (kMaxRanks != 1 && ranks() - position.rank == 1) return visit(sum<1>(position, start));
    if constexpr (kMaxRanks == 4) {
      if (ranks() - position.rank == 2) return visit(sum<2>(position, start));
      if (ranks() - position.rank == 3) return visit(sum<3>(position, start));
    }
    return visit(sum<kMaxRanks>(position, start));
  }

 private:
  using Scale = typename Format::Scale;
  static constexpr std::size_t kTileValues = kTile<Format>;
  // Ranks whose scales fit into registers next to the sum. One for small scales, because the code
  // of these formats is large.
  static constexpr std::size_t kMaxRanks = sizeof(typename Scale::Stored) == 1 ? 1 : 4;

  /// A tile and the first rank to add.
  struct Position {
    std::size_t rank, first;
    float factor;
  };

  /// The sum of kRanks ranks of a tile, added to an initial value or to earlier ranks.
  template <std::size_t kRanks, class Start>
  struct Sum {
    HWY_INLINE void operator()(std::size_t index, VF32 (&sum)[kVectors]) const {
      if (before == nullptr) {
        TERSOR_UNROLL
        for (std::size_t k = 0; k < kVectors; ++k) sum[k] = start(index + k * kLanes);
      } else {
        TERSOR_UNROLL
        for (std::size_t k = 0; k < kVectors; ++k)
          sum[k] = hn::Load(F32(), before + index + k * kLanes);
      }
      TERSOR_UNROLL
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        VF32 values[kVectors];
        VectorCodes<Format>::load(codes[rank], index, values);
        TERSOR_GROUP_LOOP
        for (std::size_t k = 0; k < kVectors; ++k)
          sum[k] = fused(values[k], scale[rank][block_of<Format>(index + k * kLanes)], sum[k]);
      }
    }

    const Start& start;
    const float* before;  // sum of earlier ranks; null: no earlier ranks
    const std::byte* codes[kMaxRanks];
    VF32 scale[kMaxRanks][kScales<Format>];  // times the factor
  };

  template <std::size_t kRanks, class Start>
  HWY_INLINE Sum<kRanks, Start> sum(const Position& position, const Start& start) {
    Sum<kRanks, Start> sum{start, position.rank == 0 ? nullptr : sums_, {}, {}};
    TERSOR_UNROLL
    for (std::size_t i = 0; i < kRanks; ++i) {
      const QuantizedView& view = views_[position.rank + i];
      const std::byte* codes = view.codes + code_bytes<Format>(position.first);
      sum.codes[i] = HWY_LIKELY(position.first + kTileValues <= count_)
                         ? codes
                         : padded(codes, count_ - position.first, padded_[i]);
      const auto* scales =
          static_cast<const typename Scale::Stored*>(view.scales) + position.first / Format::kBlock;
      const auto segment_scale = segment_scale_of<Format>(view.segment_maximum);
      for (std::size_t block = 0; block < kScales<Format>; ++block) {
        const bool exists = block == 0 || position.first + block * Format::kBlock < count_;
        const float scale = exists ? Scale::value(scales[block], segment_scale) : 0.0f;
        sum.scale[i][block] = hn::Set(F32(), scale * position.factor);
      }
    }
    return sum;
  }

  template <class Start>
  HWY_NOINLINE void add(const Position& position, const Start& start) {
    const auto sum_of = sum<kMaxRanks>(position, start);
    for (std::size_t i = 0; i < kTileValues; i += kGroup) {
      VF32 sum[kVectors];
      sum_of(i, sum);
      TERSOR_GROUP_LOOP
      for (std::size_t k = 0; k < kVectors; ++k) hn::Store(sum[k], F32(), sums_ + i + k * kLanes);
    }
  }

  using TileCodes = std::byte[code_bytes<Format>(kTileValues)];

  static HWY_NOINLINE const std::byte* padded(const std::byte* codes, std::size_t count,
                                              TileCodes& space) {
    const std::byte* end = codes + code_bytes<Format>(count);
    std::fill(std::copy(codes, end, space), std::end(space), std::byte{});
    const std::size_t bits = count * Format::kBits % 8;  // used bits of a partial last byte
    if (bits != 0) space[count * Format::kBits / 8] &= static_cast<std::byte>((1u << bits) - 1);
    return space;
  }

  const std::span<const QuantizedView> views_;
  const std::size_t count_;
  alignas(kCacheLine) TileCodes padded_[kMaxRanks];
  alignas(kCacheLine) float sums_[kTileValues];  // of more than kMaxRanks ranks
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_QUANTIZE_PAYLOADS_INL_H_
