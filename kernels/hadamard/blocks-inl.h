// Encodes p to planes and residual, in batches of blocks, for one instruction set. Each step of a
// block depends on a chain of sums and a root. Each phase therefore runs over a whole batch of
// independent blocks.
#if defined(TERSOR_KERNELS_HADAMARD_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HADAMARD_BLOCKS_INL_H_
#undef TERSOR_KERNELS_HADAMARD_BLOCKS_INL_H_
#else
#define TERSOR_KERNELS_HADAMARD_BLOCKS_INL_H_
#endif

#include "kernels/hadamard/codes-inl.h"
#include "kernels/hadamard/cpu.h"
#include "kernels/quantize/loops-inl.h"

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kBatch = 4;  // blocks; p and y take 8 KiB
constexpr std::size_t kBatchValues = kBatch * kRotationBlock;
constexpr std::size_t kPrefetchDistance = 4;  // prefetch distance in batches

/// Calls `visitor(Bits<bits>{})` for 1 to 4 bits.
template <unsigned kBits>
using Bits = std::integral_constant<unsigned, kBits>;
template <typename Visitor>
HWY_INLINE decltype(auto) visit_bits(unsigned bits, Visitor&& visitor) {
  if (bits == 1) return visitor(Bits<1>{});
  if (bits == 2) return visitor(Bits<2>{});
  if (bits == 3) return visitor(Bits<3>{});
  return visitor(Bits<4>{});
}

template <typename T>
HWY_INLINE Pointer<T> pointer_of(const void* values) {
  if constexpr (std::is_same_v<std::remove_const_t<T>, NoValues>)
    return {};
  else
    return static_cast<T*>(values);
}

/// Prefetches the block kPrefetchDistance batches after `values`, between the work on other blocks.
/// Hardware prefetchers do not follow bursts of reads.
template <typename T>
HWY_INLINE void prefetch_block(const T* values) {
  const auto* bytes = reinterpret_cast<const std::byte*>(values + kPrefetchDistance * kBatchValues);
  for (std::size_t line = 0; line < kRotationBlock * sizeof(T); line += kCacheLine)
    hwy::Prefetch(bytes + line);
}
HWY_INLINE void prefetch_block(NoValues) {}

/// Writes y, and returns the sum that determines the scale.
template <bool kOneBit>
HWY_NOINLINE float rotate_block(const float* p, float input_scale, const std::uint8_t* signs,
                                float* y) {
  RotationVectors x;
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kRotationVectors; ++k)
    x[k] = flipped(hn::Mul(load_values(p + k * kLanes), hn::Set(F32(), input_scale)), signs, k);
  rotate(x);
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kRotationVectors; ++k) hn::Store(x[k], F32(), y + k * kLanes);
  return tree_sum(x, [](VF32 v) HWY_ATTR { return kOneBit ? hn::Abs(v) : hn::Mul(v, v); });
}

/// Encodes y, and writes the difference to p as the residual. 2 · T(k) has 12 bits and t has 8
/// bits. Therefore T(k) · t equals T(k · t) without rounding.
template <unsigned kBits, typename E>
HWY_NOINLINE void code_block(const float* y, const HadamardScale& scale, const float* p,
                             const std::uint8_t* signs, std::uint8_t* planes, Pointer<E> residual) {
  const VF32 inverse = hn::Set(F32(), scale.inverse);
  BlockCodes codes;
  TERSOR_VECTOR_LOOP
  for (std::size_t k = 0; k < kRotationVectors; k += kCodeVectors) {
    codes[k / kCodeVectors] = codes_of<kBits>(y + k * kLanes, inverse);
    store_codes<kBits>(codes[k / kCodeVectors], planes, k);
  }
  if constexpr (!std::is_same_v<E, NoValues>) {
    const VF32 minus_unit = hn::Set(F32(), -hadamard_unit(scale.sent, 1.0f));
    RotationVectors x;
    rotate_numbers<kBits>(codes, x);
    TERSOR_VECTOR_LOOP
    for (std::size_t k = 0; k < kRotationVectors; ++k)
      store_values(fused(flipped(x[k], signs, k), minus_unit, load_values(p + k * kLanes)),
                   residual + k * kLanes);
  }
}

/// Writes the blocks of a range in order, batch by batch. The caller computes p of each block of a
/// batch, optionally into input_space(first), and calls add_block. The caller then calls write for
/// the batch.
template <typename E>
class HadamardWriter {
 public:
  HadamardWriter(const HadamardOutput& output, const ErrorFeedback& feedback, std::size_t count)
      : count_(count),
        bits_(output.bits),
        scales_(output.scales),
        planes_(reinterpret_cast<std::uint8_t*>(output.planes)),
        residuals_(feedback.residual_in, count),
        residual_in_(pointer_of<const E>(feedback.residual_in)),
        residual_output_(feedback.residual_out, residual_store(feedback)) {}

  std::size_t end_of_batch(std::size_t first) const {
    return std::min(first + kBatchValues, count_);
  }
  HWY_INLINE Pointer<const E> old_residual(std::size_t first) { return residuals_.tile(first); }
  HWY_INLINE float* input_space(std::size_t first) { return p_[index_of(first)]; }

  /// Registers the block at `first` and its absmax. Missing values in the block's input space
  /// become +0. If p is stored elsewhere, the caller has already padded p with zeros.
  HWY_INLINE void add_block(std::size_t first, const float* p, const Absmax& absmax) {
    range_[index_of(first)] = {absmax.bits()};
    inputs_[index_of(first)] = p;
    if (HWY_UNLIKELY(first + kRotationBlock > count_))
      std::fill(input_space(first) + (count_ - first), input_space(first) + kRotationBlock, 0.0f);
  }

  /// Writes the batch at `first` with its signs. `gradient` is the range's gradient or NoValues.
  template <typename Gradient>
  HWY_INLINE void write(std::size_t first, const std::uint8_t* signs, Gradient gradient) {
    visit_bits(bits_, [&]<unsigned kBits>(Bits<kBits>) HWY_ATTR {
      for (std::size_t at = first; at < end_of_batch(first); at += kRotationBlock) {
        prefetch_block(gradient + at);
        rotate_at<kBits>(at, signs);
      }
      for (std::size_t at = first; at < end_of_batch(first); at += kRotationBlock) {
        prefetch_block(residual_in_ + at);
        write_at<kBits>(at, signs);
      }
    });
  }

  /// Number of finite values that decode to NaN.
  std::size_t overflows() const { return overflows_; }

 private:
  static std::size_t index_of(std::size_t first) { return first / kRotationBlock % kBatch; }

  template <unsigned kBits>
  HWY_INLINE void rotate_at(std::size_t first, const std::uint8_t* signs) {
    const std::size_t i = index_of(first);
    if (HWY_UNLIKELY(range_[i].is_special())) return;
    const float sum = rotate_block<kBits == 1>(inputs_[i], range_[i].input_scale(),
                                               signs + i * kSignBytes, y_[i]);
    scale_[i] = hadamard_scale<kBits>(range_[i], sum);
  }

  template <unsigned kBits>
  HWY_INLINE void write_at(std::size_t first, const std::uint8_t* signs) {
    const std::size_t i = index_of(first), count = std::min(kRotationBlock, count_ - first);
    const Pointer<E> residual = residual_output_.tile(count);
    if (HWY_UNLIKELY(range_[i].is_special()))
      write_special(first, count, residual);
    else
      code_block<kBits, E>(y_[i], scale_[i], inputs_[i], signs + i * kSignBytes, planes_, residual);
    *scales_++ = range_[i].is_special() ? range_[i].special_scale() : scale_[i].sent;
    planes_ += kBits * kPlaneBytes;
    residual_output_.commit(count);
  }

  HWY_NOINLINE void write_special(std::size_t first, std::size_t count, Pointer<E> residual) {
    const std::size_t i = index_of(first);
    std::fill_n(planes_, bits_ * kPlaneBytes, std::uint8_t{0});
    if (range_[i].poisoned())
      overflows_ +=
          static_cast<std::size_t>(std::count_if(inputs_[i], inputs_[i] + count, is_finite));
    if constexpr (!std::is_same_v<E, NoValues>) {
      const E* old = old_residual(first);
      if (range_[i].underflows())
        for (std::size_t at = 0; at < kRotationBlock; at += kLanes)
          store_values(load_values(inputs_[i] + at), residual + at);
      else if (residual != old)
        std::copy_n(old, kRotationBlock, residual);
    }
  }

  const std::size_t count_;
  const unsigned bits_;
  std::uint16_t* scales_;
  std::uint8_t* planes_;
  Input<E, kRotationBlock> residuals_;
  const Pointer<const E> residual_in_;
  Output<E, kRotationBlock> residual_output_;
  std::size_t overflows_ = 0;
  HadamardRange range_[kBatch];
  HadamardScale scale_[kBatch];
  const float* inputs_[kBatch];  // p
  alignas(kCacheLine) float p_[kBatch][kRotationBlock];
  alignas(kCacheLine) float y_[kBatch][kRotationBlock];
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HADAMARD_BLOCKS_INL_H_
