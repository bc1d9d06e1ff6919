// Blocks of 4,096 values: adds payloads, and encodes p to lists and residual, for one instruction
// set.
#if defined(TERSOR_KERNELS_BLOCKTOPK_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_BLOCKTOPK_BLOCKS_INL_H_
#undef TERSOR_KERNELS_BLOCKTOPK_BLOCKS_INL_H_
#else
#define TERSOR_KERNELS_BLOCKTOPK_BLOCKS_INL_H_
#endif

#include "kernels/blocktopk/cpu.h"
#include "kernels/blocktopk/formulas.h"
#include "kernels/blocktopk/lists.h"
#include "kernels/blocktopk/select-inl.h"
#include "kernels/quantize/loops-inl.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kValues = BlocktopkBlock::kValues;
constexpr std::size_t kPrefetchValues = Selector::kWord;  // values prefetched at once

/// Converts a block's values to another type. f32 values are rounded once.
template <typename From, typename To>
HWY_INLINE void convert(const From* from, To* to) {
  for (std::size_t i = 0; i < kValues; i += kLanes) store_values(load_values(from + i), to + i);
}

/// Calls `visitor(Kind<kSign>{})`, or the same for kInt4 or kBf16.
template <BlocktopkValues kKind>
using Kind = std::integral_constant<BlocktopkValues, kKind>;
template <typename Visitor>
HWY_INLINE void visit_kind(BlocktopkValues values, Visitor&& visitor) {
  if (values == BlocktopkValues::kSign) return visitor(Kind<BlocktopkValues::kSign>{});
  if (values == BlocktopkValues::kInt4) return visitor(Kind<BlocktopkValues::kInt4>{});
  visitor(Kind<BlocktopkValues::kBf16>{});
}

/// sum += value · factor for all payloads of a block, in order.
HWY_INLINE void add_payloads(const BlocktopkInput& input, std::size_t index, float factor,
                             float* sum) {
  const BlocktopkBlock& block = input.block;
  visit_kind(block.values, [&]<BlocktopkValues kKind>(Kind<kKind>) {
    for (const BlocktopkView& payload : input.payloads) {
      const BlocktopkView lists = payload.from(index, block);
      const float scale = block.scale_words() == 0 ? 0.0f : float_of(*lists.scales);
      BitReader codes(lists.values, block.value_bits());
      for_each_index(lists.high, lists.low, block, [&](std::uint32_t value_index) HWY_ATTR {
        const float value = blocktopk_value<kKind>(codes.next(), scale) * factor;
        sum[value_index] += value;
      });
    }
  });
}

/// Returns the sum of `count` magnitudes, at least one. The magnitudes are padded with +0 to the
/// next power of two, and halves are added until one value is left.
HWY_INLINE float tree_sum(float (&magnitudes)[BlocktopkBlock::kMostSelected], std::size_t count) {
  const std::size_t whole = std::bit_ceil(count);
  std::fill(magnitudes + count, magnitudes + whole, 0.0f);
  for (std::size_t half = whole / 2; half > 0; half /= 2)
    for (std::size_t i = 0; i < half; ++i) magnitudes[i] += magnitudes[i + half];
  return magnitudes[0];
}

/// Writes the blocks of a range in order.
template <typename E>
class BlocktopkWriter {
 public:
  BlocktopkWriter(const BlocktopkPayload& output, const BlocktopkBlock& block,
                  const ErrorFeedback& feedback, std::size_t count)
      : count_(count),
        block_(block),
        output_(output),
        residuals_(feedback.residual_in, count),
        residual_output_(feedback.residual_out, residual_store(feedback)),
        selector_(block.selected) {}

  HWY_INLINE Pointer<const E> old_residual(std::size_t first) { return residuals_.tile(first); }

  /// Writes the block at `first`. p_at(i) returns p of the vector at value i of the block. Hardware
  /// prefetchers do not follow bursts of reads. Therefore this function prefetches the next block
  /// while the current block is sorted. The callback prefetch_input(i) prefetches the caller's
  /// kPrefetchValues values from i on.
  template <typename ValuesAt, typename Prefetch>
  HWY_INLINE void write(std::size_t first, const ValuesAt& p_at, const Prefetch& prefetch_input) {
    Absmax absmax;
    for (std::size_t i = 0; i < kValues; i += Selector::kGroup * kLanes)
      selector_.update(i, [&](std::size_t k) HWY_ATTR {
        const VF32 value = p_at(i + k * kLanes);
        hn::Store(value, F32(), p_ + i + k * kLanes);
        absmax.update(value, k);
        return value;
      });
    const std::size_t count = std::min(kValues, count_ - first);
    visit_kind(block_.values, [&]<BlocktopkValues kKind>(Kind<kKind>) HWY_ATTR {
      if (absmax.bits() < kBlocktopkPoisonBits)
        code<kKind>(absmax.bits(), residual_output_.tile(count), [&](std::size_t i) HWY_ATTR {
          prefetch_input(first + kValues + i);
          residuals_.prefetch(first + kValues + i, kPrefetchValues);
        });
      else
        poison<kKind>(first, count, residual_output_.tile(count));
    });
    residual_output_.commit(count);
    write_lists(selected_, block_, output_.high, output_.low, output_.values);
    output_ = output_.from(1, block_);
  }

  /// Number of finite values in poisoned blocks.
  std::size_t overflows() const { return overflows_; }

 private:
  static constexpr bool kHasResidual = !std::is_same_v<E, NoValues>;

  /// Selects from p, codes the selected values, and stores the remainder as residual.
  template <BlocktopkValues kKind, typename Prefetch>
  HWY_INLINE void code(std::uint32_t absmax, Pointer<E> residual, const Prefetch& prefetch_input) {
    selected_.count = selector_.select(p_, absmax, indices_, prefetch_input);
    std::copy_n(indices_, selected_.count, selected_.index);
    const BlocktopkScale scale = scale_of<kKind>(absmax);
    write_scale(bits_of(scale.scale));
    for (std::size_t j = 0; j < selected_.count; ++j) {
      float& p = p_[selected_.index[j]];
      selected_.code[j] = static_cast<std::uint16_t>(blocktopk_code<kKind>(p, scale));
      if constexpr (kHasResidual) p -= blocktopk_value<kKind>(selected_.code[j], scale.scale);
    }
    if constexpr (kHasResidual) convert(p_, residual);
  }

  template <BlocktopkValues kKind>
  HWY_INLINE BlocktopkScale scale_of(std::uint32_t absmax) {
    if (kKind == BlocktopkValues::kInt4) return blocktopk_int4_scale(absmax);
    if (kKind == BlocktopkValues::kBf16 || selected_.count == 0) return {};
    for (std::size_t j = 0; j < selected_.count; ++j)
      magnitudes_[j] = float_of(magnitude_bits(p_[selected_.index[j]]));
    return blocktopk_sign_scale(tree_sum(magnitudes_, selected_.count),
                                static_cast<std::uint32_t>(selected_.count));
  }

  /// Sends NaNs at the first indices and keeps the residual.
  template <BlocktopkValues kKind>
  HWY_NOINLINE void poison(std::size_t first, std::size_t count, Pointer<E> residual) {
    selected_.count = std::min(block_.selected, count);
    std::iota(selected_.index, selected_.index + selected_.count, std::uint16_t{0});
    std::fill_n(selected_.code, selected_.count, blocktopk_poison_code<kKind>());
    write_scale(kNanBits);
    overflows_ += static_cast<std::size_t>(std::count_if(p_, p_ + count, is_finite));
    if constexpr (kHasResidual) {
      const E* old = old_residual(first);
      if (residual != old) std::copy_n(old, kValues, residual);
    }
  }

  HWY_INLINE void write_scale(std::uint32_t bits) {
    if (block_.scale_words() != 0) *output_.scales = bits;
  }

  const std::size_t count_;
  const BlocktopkBlock block_;
  BlocktopkPayload output_;
  Input<E, kValues> residuals_;
  Output<E, kValues> residual_output_;
  Selector selector_;
  std::size_t overflows_ = 0;
  BlocktopkSelected selected_;
  alignas(kCacheLine) float p_[kValues];
  alignas(kCacheLine) float magnitudes_[BlocktopkBlock::kMostSelected];
  std::uint16_t indices_[kValues + Selector::kBatch];
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_BLOCKTOPK_BLOCKS_INL_H_
