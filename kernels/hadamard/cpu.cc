// hadamard on the CPU. A block of 256 values is rotated in registers (16 AVX-512 registers). Memory
// traffic in bytes per value, for f32 and 2 bits:
//   Encode: 4 read and 0.26 written. Error feedback adds 4 read and 4 written.
//   Decode: 0.26 read per payload and 4 written.
//   Reduce: 0.26 read per payload and 0.26 written. The owner's residual adds 4 read and 4 written.

#include "kernels/hadamard/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/hadamard/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/hadamard/blocks-inl.h"
#include "kernels/scalar/float_mode.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

template <typename G, typename E>
std::size_t encode_range(const HadamardEncode& arguments) {
  const EncodeInput& sent = arguments.sent;
  SentBlocks<kRotationBlock, G, E> blocks(sent);
  BlockSigns signs(arguments.signs);
  HadamardWriter<E> writer(arguments.output, sent.feedback, sent.count);
  for (std::size_t first = 0; first < sent.count; first += kBatchValues) {
    for (std::size_t at = first; at < writer.end_of_batch(first); at += kRotationBlock) {
      Absmax absmax;
      const float* p = blocks.at(at, writer.input_space(at),
                                 [&](VF32 v, std::size_t k) HWY_ATTR { absmax.update(v, k); });
      writer.add_block(at, p, absmax);
    }
    writer.write(first, signs.at(first), static_cast<const G*>(sent.gradient));
  }
  return writer.overflows();
}

/// Sums the payloads of one block, before applying the signs.
template <unsigned kBits>
HWY_INLINE void sum_block(std::span<const HadamardView> payloads, std::size_t block, float factor,
                          RotationVectors& w) {
  const CodeNumbers<kBits> numbers;
  for (std::size_t rank = 0; rank < payloads.size(); ++rank) {
    const VF32 unit = hn::Set(F32(), hadamard_unit(payloads[rank].scales[block], factor));
    const auto* planes =
        reinterpret_cast<const std::uint8_t*>(payloads[rank].planes) + block * kBits * kPlaneBytes;
    TERSOR_VECTOR_LOOP
    for (std::size_t k = 0; k < kRotationVectors; k += kCodeVectors) {
      VF32 values[kCodeVectors];
      numbers.of(load_codes<kBits>(planes, k), values);
      TERSOR_UNROLL
      for (std::size_t i = 0; i < kCodeVectors; ++i)
        w[k + i] = rank == 0 ? hn::Mul(values[i], unit) : fused(values[i], unit, w[k + i]);
    }
  }
  rotate(w);
}

/// Decodes one payload of a block as T(k) · t, before applying the signs. The result equals T(k ·
/// t) if t has at most 12 bits, for example if the factor is a power of two. Otherwise returns
/// false and does nothing.
template <unsigned kBits>
HWY_INLINE bool decode_block(const HadamardView& payload, std::size_t block, float factor,
                             RotationVectors& w) {
  const float unit = hadamard_unit(payload.scales[block], factor);
  if (HWY_UNLIKELY((bits_of(unit) & 0xfffu) != 0 || !(unit > 0x1p-100f && unit < 0x1p100f)))
    return false;
  const auto* planes =
      reinterpret_cast<const std::uint8_t*>(payload.planes) + block * kBits * kPlaneBytes;
  BlockCodes codes;
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kRotationVectors; k += kCodeVectors)
    codes[k / kCodeVectors] = load_codes<kBits>(planes, k);
  rotate_numbers<kBits>(codes, w);
  TERSOR_VECTOR_LOOP
  for (VF32& vector : w) vector = hn::Mul(vector, hn::Set(F32(), unit));
  return true;
}

template <unsigned kBits, typename T>
void decode_range(const HadamardDecode& arguments) {
  const HadamardInput& input = arguments.input;
  const DecodeOutput& to = arguments.to;
  const bool adds = to.mode == DecodeMode::kAdd;
  BlockSigns signs(input.signs);
  Input<T, kRotationBlock> old_values(to.output, input.count);
  Output<T, kRotationBlock> output(to.output, adds ? Store::kCached : to.store);
  for (std::size_t first = 0; first < input.count; first += kRotationBlock) {
    const std::size_t count = std::min(kRotationBlock, input.count - first);
    const std::uint8_t* flips = signs.at(first);
    const T* old = adds ? old_values.tile(first) : nullptr;
    T* values = output.tile(count);
    RotationVectors w;
    const std::size_t block = first / kRotationBlock;
    if (input.payloads.size() != 1 || !decode_block<kBits>(input.payloads[0], block, to.factor, w))
      sum_block<kBits>(input.payloads, block, to.factor, w);
    if (adds) {
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kRotationVectors; ++k)
        store_values(hn::Add(load_values(old + k * kLanes), flipped(w[k], flips, k)),
                     values + k * kLanes);
    } else {
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kRotationVectors; ++k)
        store_values(flipped(w[k], flips, k), values + k * kLanes);
    }
    output.commit(count);
  }
}

/// Clears the values from `count` on, which are errors of the frames, and returns the absmax.
HWY_NOINLINE Absmax clear_tail(float* p, std::size_t count) {
  std::fill(p + count, p + kRotationBlock, 0.0f);
  Absmax absmax;
  for (std::size_t k = 0; k < kRotationVectors; ++k)
    absmax.update(hn::Load(F32(), p + k * kLanes), k);
  return absmax;
}

template <unsigned kBits, typename E>
std::size_t reduce_range(const HadamardReduce& arguments) {
  const HadamardInput& input = arguments.input;
  const Factors factors(arguments.feedback);
  BlockSigns signs(input.signs);
  HadamardWriter<E> writer(arguments.output, arguments.feedback, input.count);
  for (std::size_t first = 0; first < input.count; first += kBatchValues) {
    for (std::size_t at = first; at < writer.end_of_batch(first); at += kRotationBlock) {
      const std::uint8_t* flips = signs.at(at);
      const Pointer<const E> residual = writer.old_residual(at);
      float* p = writer.input_space(at);
      Absmax absmax;
      RotationVectors w;
      sum_block<kBits>(input.payloads, at / kRotationBlock, arguments.factor, w);
      TERSOR_VECTOR_LOOP
      for (std::size_t k = 0; k < kRotationVectors; ++k) {
        const VF32 value = add_residual(flipped(w[k], flips, k), residual + k * kLanes, factors);
        hn::Store(value, F32(), p + k * kLanes);
        absmax.update(value, k);
      }
      if (HWY_UNLIKELY(at + kRotationBlock > input.count)) absmax = clear_tail(p, input.count - at);
      writer.add_block(at, p, absmax);
    }
    writer.write(first, signs.at(first), NoValues{});
  }
  return writer.overflows();
}

std::size_t hadamard_encode_on(const HadamardEncode& arguments) {
  const DefaultFloatMode mode;
  return visit_sent(arguments.sent,
                    [&]<typename G, typename E>(G, E) { return encode_range<G, E>(arguments); });
}

void hadamard_decode_on(const HadamardDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.to.dtype, [&](auto value) {
    visit_bits(arguments.input.bits, [&]<unsigned kBits>(Bits<kBits>) {
      decode_range<kBits, decltype(value)>(arguments);
    });
  });
}

std::size_t hadamard_reduce_on(const HadamardReduce& arguments) {
  const DefaultFloatMode mode;
  return visit_residual(arguments.feedback, [&]<typename E>(E) {
    return visit_bits(arguments.input.bits, [&]<unsigned kBits>(Bits<kBits>) {
      return reduce_range<kBits, E>(arguments);
    });
  });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(std::size_t, hadamard_encode, (const HadamardEncode& arguments), (arguments))
TERSOR_DISPATCHED(void, hadamard_decode, (const HadamardDecode& arguments), (arguments))
TERSOR_DISPATCHED(std::size_t, hadamard_reduce, (const HadamardReduce& arguments), (arguments))

}  // namespace tersor::kernels
#endif
