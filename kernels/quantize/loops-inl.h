// The loops of all quantising formats for one instruction set. A tile is read once: p stays in the
// first-level cache between the maximum and the codes. Encode reads 4 bytes and writes 1 byte
// (int4: 1/2) per f32 value. Error feedback adds 4 bytes read and 4 bytes written.
#if defined(TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
#endif

#include "kernels/host/feedback-inl.h"
#include "kernels/host/noise-inl.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/payloads-inl.h"
#include "kernels/scalar/float_mode.h"

#include <tersor/align.h>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Computes the largest magnitude of the values passed to update(), as bits.
class Absmax {
 public:
  HWY_INLINE Absmax() {
    for (VI32& most : maxima_) most = hn::Zero(I32());
  }

  /// Adds the k-th vector. Four alternating maxima avoid a dependency between consecutive vectors.
  HWY_INLINE void update(VF32 value, std::size_t k) {
    maxima_[k % 4] = hn::Max(maxima_[k % 4], keys_of(value));
  }

  HWY_INLINE std::uint32_t bits() const {
    const VI32 all = hn::Max(hn::Max(maxima_[0], maxima_[1]), hn::Max(maxima_[2], maxima_[3]));
    return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), all)));
  }

 private:
  VI32 maxima_[4];
};

/// The maxima of the blocks of a tile.
template <class Format>
struct TileMaxima {
  HWY_INLINE TileMaxima() {}

  /// Adds the k-th vector of the tile.
  HWY_INLINE void update(VF32 value, std::size_t k) {
    of[block_of<Format>(k * kLanes)].update(value, k);
  }
  Absmax of[kScales<Format>];
};

/// The output of one tile. Each pointer has space for a whole tile.
template <typename E>
struct TileOutput {
  std::byte* codes;
  Pointer<E> residual_out;
  const std::uint8_t* noise;  // null: nearest rounding
};

/// Stores the remainder of p after coding.
template <typename Residual>  // a pointer, or NoValues
HWY_INLINE VI32 store_remainder(const Coded& coded, VF32 p, VF32 scale, Residual residual) {
  if constexpr (!std::is_same_v<Residual, NoValues>)
    store_values(hn::Sub(p, hn::Mul(coded.values, scale)), residual);
  return coded.codes;
}

/// Returns the part of p to be coded.
template <class Format>
HWY_INLINE VF32 clamped(VF32 p, VF32 most) {
  if constexpr (Format::kClamps)
    return hn::Clamp(p, hn::Neg(most), most);
  else
    return p;
}

template <class Format>
using TileScales = BlockScale[kScales<Format>];

/// Writes codes and residual of a tile without poisoned blocks.
template <class Format, typename E>
HWY_INLINE void quantize_tile(const float* p, const TileScales<Format>& scales, float levels,
                              const TileOutput<E>& out) {
  using Codes = VectorCodes<Format>;
  const hn::Rebind<std::uint8_t, I32> narrow;
  VF32 scale[kScales<Format>], inverse[kScales<Format>], most[kScales<Format>];
  for (std::size_t block = 0; block < kScales<Format>; ++block) {
    scale[block] = hn::Set(F32(), scales[block].scale);
    inverse[block] = hn::Set(F32(), scales[block].inverse);
    most[block] = hn::Set(F32(), levels * scales[block].scale);
  }
  for (std::size_t i = 0; i < kTile<Format>; i += kGroup) {
    VI32 codes[kVectors];
    if (!Format::kStochastic || out.noise == nullptr) {
      TERSOR_GROUP_LOOP
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 value = load_values(p + at);
        const std::size_t block = block_of<Format>(at);
        codes[k] =
            store_remainder(Codes::nearest(clamped<Format>(value, most[block]), inverse[block]),
                            value, scale[block], out.residual_out + at);
      }
    } else if constexpr (Format::kStochastic) {
      TERSOR_GROUP_LOOP
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 value = load_values(p + at);
        const VI32 random = hn::PromoteTo(I32(), hn::LoadU(narrow, out.noise + at));
        codes[k] =
            store_remainder(Codes::stochastic(clamped<Format>(value, most[0]), inverse[0], random),
                            value, scale[0], out.residual_out + at);
      }
    }
    Codes::store(codes, out.codes, i);
  }
}

/// The input of a tile's coding.
template <class Format, typename E>
struct InputTile {
  const float* p;
  Pointer<const E> residual;
  TileScales<Format> scale;

  HWY_INLINE bool is_poisoned() const {
    bool poisoned = false;
    for (const BlockScale& block : scale) poisoned |= block.poisoned;
    return poisoned;
  }
};

/// Writes a tile. Poisoned blocks get codes 0 and keep their residual.
template <class Format, typename E>
HWY_NOINLINE void quantize_poisoned(InputTile<Format, E> tile, float levels,
                                    const TileOutput<E>& out) {
  constexpr std::size_t kBlock = Format::kBlock;
  alignas(kCacheLine) float p[kTile<Format>];
  std::copy_n(tile.p, kTile<Format>, p);
  [[maybe_unused]] E old[kTile<Format>];
  if constexpr (!std::is_same_v<E, NoValues>) std::copy_n(tile.residual, kTile<Format>, old);
  const TileScales<Format>& found = tile.scale;
  bool poisoned[kScales<Format>];
  for (std::size_t block = 0; block < kScales<Format>; ++block) {
    poisoned[block] = found[block].poisoned;
    if (!poisoned[block]) continue;
    tile.scale[block] = {0.0f, 0.0f, false};
    std::fill_n(p + block * kBlock, kBlock, 0.0f);
  }
  quantize_tile<Format>(p, tile.scale, levels, out);
  if constexpr (!std::is_same_v<E, NoValues>)
    for (std::size_t block = 0; block < kScales<Format>; ++block)
      if (poisoned[block])
        std::copy_n(old + block * kBlock, kBlock, out.residual_out + block * kBlock);
}

/// Codes the tiles of a range in order, in batches. Computing a block's scale from its maximum has
/// a long latency, and reading the next tiles hides the latency. Streamed codes are limited by
/// memory instead, so the batch is one tile, because reads in bursts are slower.
template <class Format, typename E>
class Quantizer {
 public:
  Quantizer(std::size_t count, const Noise& noise, const ErrorFeedback& feedback,
            const QuantizeOutput& output, float levels = 0)
      : count_(count),
        levels_(levels),
        batch_(output.store == Store::kStreaming ? 1 : kMaxTiles),
        noise_(noise),
        codes_(output.codes, output.store, output.words),
        residual_(feedback.residual_out, residual_store(feedback)) {}

  /// Codes all tiles. The callback `read(first, space, tile)` fills the tile at `first`, and may
  /// store p in `space`.
  template <class Read>
  HWY_INLINE void run(const Read& read) {
    for (std::size_t first = 0; first < count_;) {
      std::size_t tiles = 0;
      for (; tiles < batch_ && first + tiles * kValues < count_; ++tiles)
        read(first + tiles * kValues, sums_[tiles], tiles_[tiles]);
      for (std::size_t i = 0; i < tiles; ++i, first += kValues) write(first, tiles_[i]);
    }
  }

 private:
  static constexpr std::size_t kValues = kTile<Format>;
  static constexpr std::size_t kMaxTiles = 8;

  HWY_INLINE void write(std::size_t first, const InputTile<Format, E>& tile) {
    const std::size_t count = std::min(kValues, count_ - first);
    const TileOutput<E> out{codes_.tile(code_bytes<Format>(count)), residual_.tile(count),
                            noise_.at(first, kValues)};
    if (HWY_UNLIKELY(tile.is_poisoned()))
      quantize_poisoned<Format>(tile, levels_, out);
    else
      quantize_tile<Format>(tile.p, tile.scale, levels_, out);
    codes_.commit(code_bytes<Format>(count));
    residual_.commit(count);
  }

  const std::size_t count_;
  const float levels_;       // used by formats that clamp p
  const std::size_t batch_;  // tiles
  NoiseBytes noise_;
  Output<std::byte, code_bytes<Format>(kValues), StreamSum> codes_;
  Output<E, kValues> residual_;
  InputTile<Format, E> tiles_[kMaxTiles];
  alignas(kCacheLine) float sums_[kMaxTiles][kValues];
};

/// Computes p = a · g + b · e, tile by tile.
template <std::size_t kValues, typename G, typename E>
class SentBlocks {
 public:
  explicit SentBlocks(const EncodeInput& sent)
      : factors_(sent.feedback),
        gradients_(sent.gradient, sent.count),
        residuals_(sent.feedback.residual_in, sent.count) {}

  /// Returns p of the whole tile at `first`, stored in `space` if necessary. Calls visit(vector,
  /// k) for each vector in order.
  template <class Visit>
  HWY_INLINE const float* at(std::size_t first, float* space, const Visit& visit) {
    // An f32 gradient without residual is read twice instead of copied.
    constexpr bool kPlain = std::is_same_v<G, float> && std::is_same_v<E, NoValues>;
    const G* gradient = gradients_.tile(first);
    residual_ = residuals_.tile(first);
    for (std::size_t i = 0; i < kValues; i += kGroup) TERSOR_GROUP_LOOP
    for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
      const VF32 p = with_feedback(gradient + at, residual_ + at, factors_);
      if constexpr (!kPlain) hn::Store(p, F32(), space + at);
      visit(p, at / kLanes);
    }
    if constexpr (kPlain)
      return gradient;
    else
      return space;
  }

  /// The old residual of the last tile passed to at().
  HWY_INLINE Pointer<const E> residual() const { return residual_; }

 private:
  const Factors factors_;
  Input<G, kValues> gradients_;
  Input<E, kValues> residuals_;
  Pointer<const E> residual_ = {};
};

/// Computes the scales of a range's blocks and writes them in order.
template <class Format>
class ScaleWriter {
 public:
  using Scale = typename Format::Scale;

  ScaleWriter(const QuantizeOutput& output, std::size_t count)
      : segment_scale_(segment_scale_of<Format>(output.segment_maximum)),
        next_(static_cast<typename Scale::Stored*>(output.scales)),
        end_(next_ + ceil_div(count, Format::kBlock)) {}

  HWY_INLINE void write(const TileMaxima<Format>& maxima, TileScales<Format>& scales) {
    for (std::size_t block = 0; block < kScales<Format>; ++block) {
      scales[block] = block_scale<Format>(maxima.of[block].bits(), segment_scale_);
      if (block == 0 || next_ != end_) *next_++ = Scale::stored(scales[block]);
    }
  }

 private:
  const typename Scale::SegmentScale segment_scale_;
  typename Scale::Stored* next_;
  typename Scale::Stored* const end_;
};

template <class Format, typename G, typename E>
void encode_range(const QuantizeEncode& arguments) {
  const EncodeInput& sent = arguments.sent;
  SentBlocks<kTile<Format>, G, E> blocks(sent);
  Quantizer<Format, E> quantizer(sent.count, arguments.noise, sent.feedback, arguments.output);
  ScaleWriter<Format> scales(arguments.output, sent.count);
  quantizer.run(
      [&](std::size_t first, float* space, InputTile<Format, E>& tile) HWY_ATTR TERSOR_INLINED {
        TileMaxima<Format> maxima;
        tile.p = blocks.at(first, space,
                           [&](VF32 value, std::size_t k) HWY_ATTR { maxima.update(value, k); });
        tile.residual = blocks.residual();
        scales.write(maxima, tile.scale);
      });
}

template <class Format, typename T, bool kOne>
void decode_range(const QuantizeDecode& arguments) {
  constexpr std::size_t kValues = kTile<Format>;
  const DecodeOutput& to = arguments.to;
  const bool adds = to.mode == DecodeMode::kAdd;
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<T, kValues> old_values(to.output, arguments.count);
  Output<T, kValues> output(to.output, adds ? Store::kCached : to.store);
  // -0, because adding to -0 keeps every first value unchanged.
  const VF32 initial = hn::Set(F32(), payloads.ranks() == 0 ? 0.0f : -0.0f);
  for (std::size_t first = 0; first < arguments.count; first += kValues) {
    const std::size_t count = std::min(kValues, arguments.count - first);
    const T* old = adds ? old_values.tile(first) : nullptr;
    T* values = output.tile(count);
    payloads.template visit<kOne>(
        first, to.factor,
        [&](std::size_t i) HWY_ATTR { return adds ? load_values(old + i) : initial; },
        [&](const auto& sum_of) HWY_ATTR {
          for (std::size_t i = 0; i < kValues; i += kGroup) {
            VF32 sum[kVectors];
            sum_of(i, sum);
            TERSOR_GROUP_LOOP
            for (std::size_t k = 0; k < kVectors; ++k)
              store_values(sum[k], values + i + k * kLanes);
          }
        });
    output.commit(count);
  }
}

/// The start of a reduction's sum.
template <class Format>
struct ZeroStart {
  HWY_INLINE VF32 operator()(std::size_t) const { return hn::Set(F32(), Format::kZero); }
};

template <class Format, typename E>
void reduce_range(const QuantizeReduce& arguments) {
  constexpr std::size_t kValues = kTile<Format>;
  constexpr std::size_t kPrefetchDistance = 1024;  // values
  const Factors factors(arguments.feedback);
  const bool prefetches = arguments.output.store == Store::kStreaming;
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<E, kValues> residuals(arguments.feedback.residual_in, arguments.count);
  Quantizer<Format, E> quantizer(arguments.count, arguments.noise, arguments.feedback,
                                 arguments.output);
  ScaleWriter<Format> scales(arguments.output, arguments.count);
  quantizer.run([&](std::size_t first, float* space, InputTile<Format, E>& tile) HWY_ATTR {
    tile.p = space;
    tile.residual = residuals.tile(first);
    if (prefetches) residuals.prefetch(first + kPrefetchDistance);
    payloads.visit(first, arguments.factor, ZeroStart<Format>(), [&](const auto& sum_of) HWY_ATTR {
      TileMaxima<Format> maxima;
      for (std::size_t i = 0; i < kValues; i += kGroup) {
        VF32 sum[kVectors];
        sum_of(i, sum);
        TERSOR_GROUP_LOOP
        for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
          const VF32 p = add_residual(sum[k], tile.residual + at, factors);
          hn::Store(p, F32(), space + at);
          maxima.update(p, at / kLanes);
        }
      }
      scales.write(maxima, tile.scale);
    });
  });
}

// The entry points select loops by type.

template <class Format>
void encode(const QuantizeEncode& arguments) {
  const DefaultFloatMode mode;
  visit_sent(arguments.sent,
             [&]<typename G, typename E>(G, E) { encode_range<Format, G, E>(arguments); });
}

template <class Format>
void decode(const QuantizeDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.to.dtype, [&]<typename T>(T) {
    if (arguments.payloads.size() == 1)
      decode_range<Format, T, true>(arguments);
    else
      decode_range<Format, T, false>(arguments);
  });
}

template <class Format>
void reduce(const QuantizeReduce& arguments) {
  const DefaultFloatMode mode;
  visit_residual(arguments.feedback,
                 [&](auto residual) { reduce_range<Format, decltype(residual)>(arguments); });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
