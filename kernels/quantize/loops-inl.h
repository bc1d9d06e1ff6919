// The loops of all quantising formats for one instruction set. A block is read once: p stays in the
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

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Computes the largest magnitude of the values passed to show(), as bits.
class Absmax {
 public:
  HWY_INLINE Absmax() {
    for (VI32& most : most_) most = hn::Zero(I32());
  }

  /// Adds the k-th vector. Four alternating maxima avoid a dependency between consecutive vectors.
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

/// The output of one block. Each pointer has space for a whole block.
template <typename E>
struct BlockOutput {
  std::byte* codes;
  Pointer<const E> residual_in;
  Pointer<E> residual_out;
  const std::uint8_t* noise;  // null: nearest rounding
};

/// Stores the remainder of p after coding.
template <typename Residual>  // a pointer, or Absent
HWY_INLINE VI32 store_left(const Coded& coded, VF32 p, VF32 scale, Residual residual) {
  if constexpr (!std::is_same_v<Residual, Absent>)
    store_values(hn::Sub(p, hn::Mul(coded.values, scale)), residual);
  return coded.codes;
}

/// Returns the part of p to be coded.
template <class Format>
HWY_INLINE VF32 cut(VF32 p, VF32 most) {
  if constexpr (Format::kCuts)
    return hn::Clamp(p, hn::Neg(most), most);
  else
    return p;
}

/// Writes codes and residual of a block that is not poisoned.
template <class Format, typename E>
HWY_INLINE void quantize_block(const float* p, const BlockScale& block, float levels,
                               const BlockOutput<E>& out) {
  using Codes = VectorCodes<Format>;
  const hn::Rebind<std::uint8_t, I32> narrow;
  const VF32 scale = hn::Set(F32(), block.scale);
  const VF32 inverse = hn::Set(F32(), block.inverse);
  const VF32 most = hn::Set(F32(), levels * block.scale);
  for (std::size_t i = 0; i < Format::kBlock; i += kGroup) {
    VI32 codes[kVectors];
    if (out.noise == nullptr)
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 value = load_values(p + at);
        codes[k] = store_left(Codes::nearest(cut<Format>(value, most), inverse), value, scale,
                              out.residual_out + at);
      }
    else
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 value = load_values(p + at);
        const VI32 random = hn::PromoteTo(I32(), hn::LoadU(narrow, out.noise + at));
        codes[k] = store_left(Codes::stochastic(cut<Format>(value, most), inverse, random), value,
                              scale, out.residual_out + at);
      }
    Codes::store(codes, out.codes, i);
  }
}

/// Writes codes 0 and keeps the residual.
template <class Format, typename E>
HWY_NOINLINE void poison_block(const BlockOutput<E>& out) {
  std::fill_n(out.codes, code_bytes<Format>(Format::kBlock), std::byte{0});
  if constexpr (!std::is_same_v<E, Absent>)
    if (out.residual_out != out.residual_in)
      std::copy_n(out.residual_in, Format::kBlock, out.residual_out);
}

/// The input of a block's coding.
template <typename E>
struct ReadBlock {
  const float* p;
  Pointer<const E> residual;
  BlockScale scale;
};

/// Codes the blocks of a range in order, in batches. Computing a block's scale from its maximum has
/// a long latency, and reading the next blocks hides the latency. Streamed codes are limited by
/// memory instead, so the batch is one block, because reads in bursts are slower.
template <class Format, typename E>
class Quantizer {
 public:
  Quantizer(std::size_t count, const Noise& noise, const ErrorFeedback& feedback,
            const QuantizeOutput& output, float levels = 0)
      : count_(count),
        levels_(levels),
        batch_(output.store == Store::kStreaming ? 1 : kMostBlocks),
        noise_(noise),
        codes_(output.codes, output.store, output.words),
        residual_(feedback.residual_out, residual_store(feedback)) {}

  /// Codes all blocks. The callback `read(first, room)` returns the block at `first`, and may store
  /// p in `space`.
  template <class Read>
  HWY_INLINE void run(const Read& read) {
    for (std::size_t first = 0; first < count_;) {
      std::size_t blocks = 0;
      for (; blocks < batch_ && first + blocks * kBlock < count_; ++blocks)
        blocks_[blocks] = read(first + blocks * kBlock, sums_[blocks]);
      for (std::size_t i = 0; i < blocks; ++i, first += kBlock) write(first, blocks_[i]);
    }
  }

 private:
  static constexpr std::size_t kBlock = Format::kBlock;
  static constexpr std::size_t kMostBlocks = 8;

  HWY_INLINE void write(std::size_t first, const ReadBlock<E>& block) {
    const std::size_t count = std::min(kBlock, count_ - first);
    const BlockOutput<E> out{codes_.tile(code_bytes<Format>(count)), block.residual,
                             residual_.tile(count), noise_.at(first, kBlock)};
    if (HWY_UNLIKELY(block.scale.poisoned))
      poison_block<Format>(out);
    else
      quantize_block<Format>(block.p, block.scale, levels_, out);
    codes_.take(code_bytes<Format>(count));
    residual_.take(count);
  }

  const std::size_t count_;
  const float levels_;       // used by formats that clamp p
  const std::size_t batch_;  // blocks
  NoiseBytes noise_;
  Output<std::byte, code_bytes<Format>(kBlock), StreamSum> codes_;
  Output<E, kBlock> residual_;
  ReadBlock<E> blocks_[kMostBlocks];
  alignas(kLine) float sums_[kMostBlocks][kBlock];
};

/// Computes p = a · g + b · e, block by block.
template <std::size_t kBlock, typename G, typename E>
class SentBlocks {
 public:
  explicit SentBlocks(const Sent& sent)
      : factors_(sent.feedback),
        gradients_(sent.gradient, sent.count),
        residuals_(sent.feedback.residual_in, sent.count) {}

  /// Returns p of the whole block at `first`, stored in `space` if necessary. Calls visit(vector,
  /// k) for each vector in order.
  template <class Visit>
  HWY_INLINE const float* at(std::size_t first, float* space, const Visit& visit) {
    // An f32 gradient without residual is read twice instead of copied.
    constexpr bool kPlain = std::is_same_v<G, float> && std::is_same_v<E, Absent>;
    const G* gradient = gradients_.tile(first);
    residual_ = residuals_.tile(first);
    for (std::size_t i = 0; i < kBlock; i += kGroup)
      for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
        const VF32 p = with_feedback(gradient + at, residual_ + at, factors_);
        if constexpr (!kPlain) hn::Store(p, F32(), space + at);
        visit(p, k);
      }
    if constexpr (kPlain)
      return gradient;
    else
      return space;
  }

  /// The old residual of the last block passed to at().
  HWY_INLINE Pointer<const E> residual() const { return residual_; }

 private:
  const Factors factors_;
  Input<G, kBlock> gradients_;
  Input<E, kBlock> residuals_;
  Pointer<const E> residual_ = {};
};

template <class Format, typename G, typename E>
void encode_range(const QuantizeEncode& arguments) {
  const Sent& sent = arguments.sent;
  SentBlocks<Format::kBlock, G, E> blocks(sent);
  Quantizer<Format, E> quantizer(sent.count, arguments.noise, sent.feedback, arguments.output);
  float* scales = arguments.output.scales;
  quantizer.run([&](std::size_t first, float* space) HWY_ATTR {
    Absmax absmax;
    const float* p =
        blocks.at(first, space, [&](VF32 value, std::size_t k) HWY_ATTR { absmax.show(value, k); });
    const BlockScale scale = block_scale<Format>(absmax.bits());
    *scales++ = scale.scale;
    return ReadBlock<E>{p, blocks.residual(), scale};
  });
}

template <class Format, typename T, bool kOne>
void decode_range(const QuantizeDecode& arguments) {
  constexpr std::size_t kBlock = Format::kBlock;
  const Decoded& to = arguments.to;
  const bool adds = to.mode == DecodeMode::kAdd;
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<T, kBlock> olds(to.output, arguments.count);
  Output<T, kBlock> output(to.output, adds ? Store::kCached : to.store);
  // -0, because adding to -0 keeps every first value unchanged.
  const VF32 none = hn::Set(F32(), payloads.ranks() == 0 ? 0.0f : -0.0f);
  for (std::size_t first = 0; first < arguments.count; first += kBlock) {
    const std::size_t count = std::min(kBlock, arguments.count - first);
    const T* old = adds ? olds.tile(first) : nullptr;
    T* values = output.tile(count);
    payloads.template visit<kOne>(
        first, to.factor,
        [&](std::size_t i) HWY_ATTR { return adds ? load_values(old + i) : none; },
        [&](const auto& sum_of) HWY_ATTR {
          for (std::size_t i = 0; i < kBlock; i += kGroup) {
            VF32 sum[kVectors];
            sum_of(i, sum);
            for (std::size_t k = 0; k < kVectors; ++k)
              store_values(sum[k], values + i + k * kLanes);
          }
        });
    output.take(count);
  }
}

/// A reduction's sum begins at +0.
struct FromZero {
  HWY_INLINE VF32 operator()(std::size_t) const { return hn::Zero(F32()); }
};

template <class Format, typename E>
void reduce_range(const QuantizeReduce& arguments) {
  constexpr std::size_t kBlock = Format::kBlock;
  constexpr std::size_t kAhead = 1024;  // values
  const Factors factors(arguments.feedback);
  const bool asks = arguments.output.store == Store::kStreaming;
  Payloads<Format> payloads(arguments.payloads, arguments.count);
  Input<E, kBlock> residuals(arguments.feedback.residual_in, arguments.count);
  Quantizer<Format, E> quantizer(arguments.count, arguments.noise, arguments.feedback,
                                 arguments.output);
  float* scales = arguments.output.scales;
  quantizer.run([&](std::size_t first, float* space) HWY_ATTR {
    const Pointer<const E> residual = residuals.tile(first);
    if (asks) residuals.ask_for(first + kAhead);
    const auto absmax =
        payloads.visit(first, arguments.factor, FromZero(), [&](const auto& sum_of) HWY_ATTR {
          Absmax absmax;
          for (std::size_t i = 0; i < kBlock; i += kGroup) {
            VF32 sum[kVectors];
            sum_of(i, sum);
            for (std::size_t k = 0, at = i; k < kVectors; ++k, at += kLanes) {
              const VF32 p = add_residual(sum[k], residual + at, factors);
              hn::Store(p, F32(), space + at);
              absmax.show(p, k);
            }
          }
          return absmax.bits();
        });
    const BlockScale scale = block_scale<Format>(absmax);
    *scales++ = scale.scale;
    return ReadBlock<E>{space, residual, scale};
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
