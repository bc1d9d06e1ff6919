// The loops of all quantising formats for one instruction set. A block is read once: its p is kept
// in the first-level cache between its maximum and its codes. Bytes a value, f32: encode 4 read and
// 1 (int4: 1/2) written; with feedback 4 more read and 4 more written.
#if defined(TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
#undef TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
#else
#define TERSOR_KERNELS_QUANTIZE_LOOPS_INL_H_
#endif

#include "kernels/host/feedback-inl.h"
#include "kernels/host/noise-inl.h"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/vectors-inl.h"
#include "kernels/scalar/float_mode.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// The bytes of a tile of codes, or of what `count` values of it take.
template <class Format>
constexpr std::size_t code_bytes(std::size_t count) {
  return (count * Format::kBits + 7) / 8;
}

/// The largest magnitude of what it is shown, as bits.
class Absmax {
 public:
  HWY_INLINE Absmax() {
    for (VI32& most : most_) most = hn::Zero(I32());
  }

  /// The k-th value. Four maxima take turns, so that none waits for another.
  HWY_INLINE void show(VF32 value, std::size_t k) {
    const VI32 no_sign = hn::Set(I32(), 0x7fffffff);
    most_[k % 4] = hn::Max(most_[k % 4], hn::And(hn::BitCast(I32(), value), no_sign));
  }

  HWY_INLINE std::uint32_t bits() const {
    const VI32 all = hn::Max(hn::Max(most_[0], most_[1]), hn::Max(most_[2], most_[3]));
    return static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), all)));
  }

 private:
  VI32 most_[4];
};

/// Where one block goes. Each pointer has room for a whole block.
template <typename E>
struct BlockOutput {
  std::byte* codes;
  Pointer<const E> residual_in;
  Pointer<E> residual_out;
  const std::uint8_t* noise;  // null: nearest
};

/// Stores what codes leave of p.
template <typename Residual>  // a pointer, or Absent
HWY_INLINE VI32 store_left(const Coded& coded, VF32 p, VF32 scale, Residual residual) {
  if constexpr (!std::is_same_v<Residual, Absent>)
    store_values(hn::Sub(p, hn::Mul(coded.values, scale)), residual);
  return coded.codes;
}

/// Codes and residual of a block that is not poisoned.
template <class Format, typename E>
HWY_INLINE void quantize_block(const float* p, const BlockScale& block, const BlockOutput<E>& out) {
  using Codes = VectorCodes<Format>;
  const hn::Rebind<std::uint8_t, I32> narrow;
  const VF32 scale = hn::Set(F32(), block.scale);
  const VF32 inverse = hn::Set(F32(), block.inverse);
  for (std::size_t i = 0; i < Format::kBlock; i += kGroup) {
    VI32 codes[kVectors];
    if (out.noise == nullptr)
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 value = load_values(p + at);
        codes[k] = store_left(Codes::nearest(value, inverse), value, scale, out.residual_out + at);
      }
    else
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 value = load_values(p + at);
        const VI32 random = hn::PromoteTo(I32(), hn::LoadU(narrow, out.noise + at));
        codes[k] = store_left(Codes::stochastic(value, inverse, random), value, scale,
                              out.residual_out + at);
      }
    Codes::store(codes, out.codes, i);
  }
}

/// All codes 0; the residual stays what it was.
template <class Format, typename E>
HWY_NOINLINE void poison_block(const BlockOutput<E>& out) {
  std::fill_n(out.codes, code_bytes<Format>(Format::kBlock), std::byte{0});
  if constexpr (!std::is_same_v<E, Absent>)
    if (out.residual_out != out.residual_in)
      std::copy_n(out.residual_in, Format::kBlock, out.residual_out);
}

/// Writes the blocks of a range in order.
template <class Format, typename E>
class Quantizer {
 public:
  /// Scales are the caller's.
  Quantizer(const Noise& noise, const ErrorFeedback& feedback, const QuantizeOutput& output)
      : noise_(noise),
        codes_(output.codes, output.store, output.words),
        residual_(feedback.residual_out, residual_store(feedback)) {}

  /// The block at `first`, of which `count` values are real.
  HWY_INLINE void write(std::size_t first, std::size_t count, const float* p,
                        const BlockScale& scale, Pointer<const E> residual_in) {
    const BlockOutput<E> out{codes_.tile(code_bytes<Format>(count)), residual_in,
                             residual_.tile(count), noise_.at(first, Format::kBlock)};
    if (HWY_UNLIKELY(scale.poisoned))
      poison_block<Format>(out);
    else
      quantize_block<Format>(p, scale, out);
    codes_.take(code_bytes<Format>(count));
    residual_.take(count);
  }

 private:
  NoiseBytes noise_;
  Output<std::byte, code_bytes<Format>(Format::kBlock), StreamSum> codes_;
  Output<E, Format::kBlock> residual_;
};

/// p = a · g + b · e of one block after the other.
template <std::size_t kBlock, typename G, typename E>
class SentBlocks {
 public:
  explicit SentBlocks(const Sent& sent)
      : factors_(sent.feedback),
        gradients_(sent.gradient, sent.count),
        residuals_(sent.feedback.residual_in, sent.count) {}

  /// p of the whole block at `first`, which visit(vector, k) is shown in order.
  template <class Visit>
  HWY_INLINE const float* at(std::size_t first, const Visit& visit) {
    const G* gradient = gradients_.tile(first);
    residual_ = residuals_.tile(first);
    for (std::size_t i = 0; i < kBlock; i += kGroup)
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 p = with_feedback(gradient + at, residual_ + at, factors_);
        if constexpr (!kPlain) hn::Store(p, F32(), sums_ + at);
        visit(p, k);
      }
    if constexpr (kPlain)
      return gradient;
    else
      return sums_;
  }

  /// What the block was shown with.
  HWY_INLINE Pointer<const E> residual() const { return residual_; }

 private:
  // Where p lies in memory already, it is read twice instead of being copied.
  static constexpr bool kPlain = std::is_same_v<G, float> && std::is_same_v<E, Absent>;

  const Factors factors_;
  Input<G, kBlock> gradients_;
  Input<E, kBlock> residuals_;
  Pointer<const E> residual_ = {};
  alignas(kLine) float sums_[kPlain ? 1 : kBlock];
};

template <class Format, typename G, typename E>
void encode_range(const QuantizeEncode& arguments) {
  const Sent& sent = arguments.sent;
  SentBlocks<Format::kBlock, G, E> blocks(sent);
  Quantizer<Format, E> quantizer(arguments.noise, sent.feedback, arguments.output);
  float* scales = arguments.output.scales;
  for (std::size_t first = 0; first < sent.count; first += Format::kBlock) {
    Absmax absmax;
    const float* p =
        blocks.at(first, [&](VF32 value, std::size_t k) HWY_ATTR { absmax.show(value, k); });
    const BlockScale scale = block_scale<Format>(absmax.bits());
    *scales++ = scale.scale;
    quantizer.write(first, std::min(Format::kBlock, sent.count - first), p, scale,
                    blocks.residual());
  }
}

/// The payloads of a range, whose codes are lent in whole blocks.
template <class Format>
class Payloads {
 public:
  Payloads(std::span<const QuantizedView> views, std::size_t count)
      : views_(views), count_(count) {}

  std::size_t ranks() const { return views_.size(); }

  /// sum[k] = update(codes, scale · factor, sum[k]) for the kGroup values at `index` of the block
  /// at `first`, with the codes of one rank.
  template <class Update>
  HWY_INLINE void apply(std::size_t rank, std::size_t first, std::size_t index, float factor,
                        VF32 (&sum)[kVectors], Update&& update) {
    const std::byte* codes = block_codes(rank, first);
    const VF32 scale = hn::Set(F32(), views_[rank].scales[first / Format::kBlock] * factor);
    VF32 values[kVectors];
    VectorCodes<Format>::load(codes, index, values);
    for (std::size_t k = 0; k < kVectors; ++k) sum[k] = update(values[k], scale, sum[k]);
  }

 private:
  HWY_INLINE const std::byte* block_codes(std::size_t rank, std::size_t first) {
    const std::byte* codes = views_[rank].codes + code_bytes<Format>(first);
    return HWY_LIKELY(first + Format::kBlock <= count_) ? codes : padded(codes, count_ - first);
  }

  HWY_NOINLINE const std::byte* padded(const std::byte* codes, std::size_t count) {
    const std::byte* end = codes + code_bytes<Format>(count);
    std::fill(std::copy(codes, end, padded_), std::end(padded_), std::byte{});
    const std::size_t bits = count * Format::kBits % 8;  // of a last byte that is not whole
    if (bits != 0) padded_[count * Format::kBits / 8] &= static_cast<std::byte>((1u << bits) - 1);
    return padded_;
  }

  const std::span<const QuantizedView> views_;
  const std::size_t count_;
  alignas(kLine) std::byte padded_[code_bytes<Format>(Format::kBlock)];
};

HWY_INLINE VF32 add_codes(VF32 codes, VF32 scale, VF32 sum) { return fused(codes, scale, sum); }
HWY_INLINE VF32 assign_codes(VF32 codes, VF32 scale, VF32) { return hn::Mul(codes, scale); }

template <class Format, typename T>
void decode_range(const QuantizeDecode& arguments) {
  constexpr std::size_t kBlock = Format::kBlock;
  const Decoded& to = arguments.to;
  const bool adds = to.mode == DecodeMode::kAdd;
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<T, kBlock> olds(to.output, arguments.count);
  Output<T, kBlock> output(to.output, adds ? Store::kCached : to.store);
  for (std::size_t first = 0; first < arguments.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, arguments.count - first);
    const T* old = adds ? olds.tile(first) : nullptr;
    T* values = output.tile(count);
    for (std::size_t i = 0; i < kBlock; i += kGroup) {
      VF32 sum[kVectors];
      for (VF32& zero : sum) zero = hn::Zero(F32());
      std::size_t rank = 0;
      if (adds)
        for (std::size_t k = 0; k < kVectors; ++k) sum[k] = load_values(old + i + k * kLanes);
      else if (payloads.ranks() > 0)
        payloads.apply(rank++, first, i, to.factor, sum, assign_codes);
      for (; rank < payloads.ranks(); ++rank)
        payloads.apply(rank, first, i, to.factor, sum, add_codes);
      for (std::size_t k = 0; k < kVectors; ++k) store_values(sum[k], values + i + k * kLanes);
    }
    output.take(count);
  }
}

template <class Format, typename E>
void reduce_range(const QuantizeReduce& arguments) {
  constexpr std::size_t kBlock = Format::kBlock;
  const Factors factors(arguments.feedback);
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<E, kBlock> residuals(arguments.feedback.residual_in, arguments.count);
  Quantizer<Format, E> quantizer(arguments.noise, arguments.feedback, arguments.output);
  float* scales = arguments.output.scales;
  alignas(kLine) float sums[kBlock];
  for (std::size_t first = 0; first < arguments.count; first += kBlock) {
    const Pointer<const E> residual = residuals.tile(first);
    Absmax absmax;
    for (std::size_t i = 0; i < kBlock; i += kGroup) {
      VF32 sum[kVectors];
      for (VF32& zero : sum) zero = hn::Zero(F32());
      for (std::size_t rank = 0; rank < payloads.ranks(); ++rank)
        payloads.apply(rank, first, i, arguments.factor, sum, add_codes);
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 p = add_residual(sum[k], residual + at, factors);
        hn::Store(p, F32(), sums + at);
        absmax.show(p, k);
      }
    }
    const BlockScale scale = block_scale<Format>(absmax.bits());
    *scales++ = scale.scale;
    quantizer.write(first, std::min(kBlock, arguments.count - first), sums, scale, residual);
  }
}

// The entry points, by types.

template <class Format>
void encode(const QuantizeEncode& arguments) {
  const DefaultFloatMode mode;
  visit_sent(arguments.sent,
             [&]<typename G, typename E>(G, E) { encode_range<Format, G, E>(arguments); });
}

template <class Format>
void decode(const QuantizeDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.to.dtype,
                       [&](auto value) { decode_range<Format, decltype(value)>(arguments); });
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
