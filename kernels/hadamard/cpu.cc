// hadamard on the CPU. A block of 256 values is turned in registers: 16 of AVX-512. Bytes a value,
// f32 and 2 bits: encode 4 read and 0.26 written, with feedback 4 more of each; decode 0.26 read a
// payload and 4 written; reduce 0.26 read a payload and 0.26 written, with the owner's residual 4
// more of each.

#include "kernels/hadamard/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/hadamard/codes-inl.h"
#include "kernels/quantize/loops-inl.h"
#include "kernels/scalar/float_mode.h"

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Calls `visitor(Bits<1>{})` up to 4.
template <unsigned kBits>
using Bits = std::integral_constant<unsigned, kBits>;
template <typename Visitor>
HWY_INLINE void visit_bits(unsigned bits, Visitor&& visitor) {
  if (bits == 1) return visitor(Bits<1>{});
  if (bits == 2) return visitor(Bits<2>{});
  if (bits == 3) return visitor(Bits<3>{});
  visitor(Bits<4>{});
}

/// Codes of a block that is neither poisoned nor vanishes, and what they leave of p.
template <unsigned kBits, typename E>
HWY_NOINLINE std::uint16_t code_block(const HadamardRange& range, const float* p,
                                      const std::uint8_t* signs, std::uint8_t* planes,
                                      Pointer<E> residual) {
  TurnVectors y;
  const VF32 down = hn::Set(F32(), range.down());
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kTurnVectors; ++k)
    y[k] = flipped(hn::Mul(load_values(p + k * kLanes), down), signs, k);
  turn(y);
  const float sum =
      tree_sum(y, [](VF32 v) HWY_ATTR { return kBits == 1 ? hn::Abs(v) : hn::Mul(v, v); });
  const HadamardScale scale = hadamard_scale<kBits>(range, sum);
  const VF32 inverse = hn::Set(F32(), scale.inverse);
  const VF32 unit = hn::Set(F32(), hadamard_unit(scale.sent, 1.0f));
  const CodeNumbers<kBits> numbers;
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kTurnVectors; ++k) {
    const VU32 codes = codes_of<kBits>(y[k], inverse);
    store_codes<kBits>(codes, planes, k);
    if constexpr (!std::is_same_v<E, Absent>) y[k] = hn::Mul(numbers.of(codes), unit);
  }
  if constexpr (!std::is_same_v<E, Absent>) {
    turn(y);
    TERSOR_VECTOR_LOOP
    for (std::size_t k = 0; k < kTurnVectors; ++k)
      store_values(hn::Sub(load_values(p + k * kLanes), flipped(y[k], signs, k)),
                   residual + k * kLanes);
  }
  return scale.sent;
}

/// Writes the blocks of a range in order.
template <typename E>
class BlockWriter {
 public:
  BlockWriter(const HadamardOutput& output, const Feedback& feedback)
      : bits_(output.bits),
        scales_(output.scales),
        planes_(output.planes),
        residual_(feedback.residual_out, residual_store(feedback, output.store)) {}

  /// A block of which `count` values are real; the others are +0.
  HWY_INLINE void write(const float* p, std::size_t count, const Absmax& absmax,
                        const std::uint8_t* signs, Pointer<const E> residual_in) {
    const HadamardRange range{absmax.bits()};
    const Pointer<E> residual = residual_.tile(count);
    auto* planes = reinterpret_cast<std::uint8_t*>(planes_);
    if (HWY_UNLIKELY(range.poisoned() || range.vanishes())) {
      *scales_ = odd_block(range, p, count, residual_in, residual);
    } else {
      visit_bits(bits_, [&]<unsigned kBits>(Bits<kBits>) HWY_ATTR {
        *scales_ = code_block<kBits, E>(range, p, signs, planes, residual);
      });
    }
    ++scales_;
    planes_ += bits_ * kPlaneBytes;
    residual_.take(count);
  }

  /// Finite values that decode to NaN.
  std::size_t overflows() const { return overflows_; }

 private:
  HWY_NOINLINE std::uint16_t odd_block(const HadamardRange& range, const float* p,
                                       std::size_t count, Pointer<const E> residual_in,
                                       Pointer<E> residual) {
    std::fill_n(planes_, bits_ * kPlaneBytes, std::byte{0});
    if (range.poisoned()) {
      overflows_ += static_cast<std::size_t>(std::count_if(p, p + count, is_finite));
      if constexpr (!std::is_same_v<E, Absent>)
        if (residual != residual_in) std::copy_n(residual_in, kTurnBlock, residual);
    } else if constexpr (!std::is_same_v<E, Absent>) {
      for (std::size_t i = 0; i < kTurnBlock; i += kLanes)
        store_values(load_values(p + i), residual + i);
    }
    return range.odd_scale();
  }

  const unsigned bits_;
  std::uint16_t* scales_;
  std::byte* planes_;
  Output<E, kTurnBlock> residual_;
  std::size_t overflows_ = 0;
};

/// p of a segment's last block, with +0 for what is missing.
class LastBlock {
 public:
  HWY_INLINE const float* whole(const float* p, std::size_t count) {
    return HWY_LIKELY(count >= kTurnBlock) ? p : filled(p, count);
  }

 private:
  HWY_NOINLINE const float* filled(const float* p, std::size_t count) {
    std::fill(std::copy_n(p, count, values_), values_ + kTurnBlock, 0.0f);
    return values_;
  }

  alignas(kLine) float values_[kTurnBlock];
};

template <typename G, typename E>
std::size_t encode_range(const HadamardEncode& arguments) {
  SentBlocks<kTurnBlock, G, E> blocks(arguments);
  BlockSigns signs(arguments.signs);
  BlockWriter<E> writer(arguments.output, arguments.feedback);
  LastBlock last;
  for (std::size_t first = 0; first < arguments.count; first += kTurnBlock) {
    const std::size_t count = std::min(kTurnBlock, arguments.count - first);
    Absmax absmax;
    const float* p =
        blocks.at(first, [&](VF32 value, std::size_t k) HWY_ATTR { absmax.show(value, k); });
    writer.write(last.whole(p, count), count, absmax, signs.at(first), blocks.residual());
  }
  return writer.overflows();
}

/// The payloads' sum of one block, before its signs.
template <unsigned kBits>
HWY_INLINE void sum_block(std::span<const HadamardView> payloads, std::size_t block, float factor,
                          TurnVectors& w) {
  const CodeNumbers<kBits> numbers;
  for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
    const VF32 unit = hn::Set(F32(), hadamard_unit(payloads[rank].scales[block], factor));
    const auto* planes =
        reinterpret_cast<const std::uint8_t*>(payloads[rank].planes) + block * kBits * kPlaneBytes;
    if (rank == 0) {
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kTurnVectors; ++k)
        w[k] = hn::Mul(numbers.of(load_codes<kBits>(planes, k)), unit);
    } else {
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kTurnVectors; ++k)
        w[k] = fused(numbers.of(load_codes<kBits>(planes, k)), unit, w[k]);
    }
  }
  turn(w);
}

template <unsigned kBits, typename T>
void decode_range(const HadamardDecode& arguments) {
  const HadamardInput& input = arguments.input;
  const bool adds = arguments.mode == DecodeMode::kAdd;
  BlockSigns signs(input.signs);
  Input<T, kTurnBlock> olds(arguments.output, input.count);
  Output<T, kTurnBlock> output(arguments.output, adds ? Store::kCached : arguments.store);
  for (std::size_t first = 0; first < input.count; first += kTurnBlock) {
    const std::size_t count = std::min(kTurnBlock, input.count - first);
    const std::uint8_t* flips = signs.at(first);
    const T* old = adds ? olds.tile(first) : nullptr;
    T* values = output.tile(count);
    TurnVectors w;
    sum_block<kBits>(input.payloads, first / kTurnBlock, arguments.factor, w);
    if (adds) {
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kTurnVectors; ++k)
        store_values(hn::Add(load_values(old + k * kLanes), flipped(w[k], flips, k)),
                     values + k * kLanes);
    } else {
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kTurnVectors; ++k)
        store_values(flipped(w[k], flips, k), values + k * kLanes);
    }
    output.take(count);
  }
}

template <unsigned kBits, typename E>
std::size_t reduce_range(const HadamardReduce& arguments) {
  const HadamardInput& input = arguments.input;
  const Factors factors(arguments.feedback);
  BlockSigns signs(input.signs);
  Input<E, kTurnBlock> residuals(arguments.feedback.residual_in, input.count);
  BlockWriter<E> writer(arguments.output, arguments.feedback);
  LastBlock last;
  alignas(kLine) float sums[kTurnBlock];
  for (std::size_t first = 0; first < input.count; first += kTurnBlock) {
    const std::size_t count = std::min(kTurnBlock, input.count - first);
    const std::uint8_t* flips = signs.at(first);
    const Pointer<const E> residual = residuals.tile(first);
    Absmax absmax;
    TurnVectors w;
    sum_block<kBits>(input.payloads, first / kTurnBlock, 1.0f, w);
    TERSOR_VECTOR_LOOP
    for (std::size_t k = 0; k < kTurnVectors; ++k) {
      const VF32 p = add_residual(flipped(w[k], flips, k), residual + k * kLanes, factors);
      hn::Store(p, F32(), sums + k * kLanes);
      absmax.show(p, k);
    }
    writer.write(last.whole(sums, count), count, absmax, flips, residual);
  }
  return writer.overflows();
}

std::size_t hadamard_encode_on(const HadamardEncode& arguments) {
  const DefaultFloatMode mode;
  std::size_t overflows = 0;
  visit_gradient_dtype(arguments.dtype, [&](auto gradient) {
    visit_residual(arguments.feedback, [&](auto residual) {
      overflows = encode_range<decltype(gradient), decltype(residual)>(arguments);
    });
  });
  return overflows;
}

void hadamard_decode_on(const HadamardDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.dtype, [&](auto value) {
    visit_bits(arguments.input.bits, [&]<unsigned kBits>(Bits<kBits>) {
      decode_range<kBits, decltype(value)>(arguments);
    });
  });
}

std::size_t hadamard_reduce_on(const HadamardReduce& arguments) {
  const DefaultFloatMode mode;
  std::size_t overflows = 0;
  visit_residual(arguments.feedback, [&](auto residual) {
    visit_bits(arguments.input.bits, [&]<unsigned kBits>(Bits<kBits>) {
      overflows = reduce_range<kBits, decltype(residual)>(arguments);
    });
  });
  return overflows;
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(hadamard_encode_on);
HWY_EXPORT(hadamard_decode_on);
HWY_EXPORT(hadamard_reduce_on);

std::size_t hadamard_encode(const HadamardEncode& arguments) {
  return TERSOR_DISPATCH(hadamard_encode_on)(arguments);
}
void hadamard_decode(const HadamardDecode& arguments) {
  TERSOR_DISPATCH(hadamard_decode_on)(arguments);
}
std::size_t hadamard_reduce(const HadamardReduce& arguments) {
  return TERSOR_DISPATCH(hadamard_reduce_on)(arguments);
}

}  // namespace tersor::kernels
#endif
