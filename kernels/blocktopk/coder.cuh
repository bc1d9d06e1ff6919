// Encodes p of 4,096 values with a warp on a device. The encoder selects the k largest values,
// builds the lists in shared memory, writes the lists, and stores the residual.
#pragma once

#include "kernels/blocktopk/select.cuh"
#include "kernels/device/call.cuh"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// The output of a kernel.
struct BlocktopkTarget {
  std::byte* payload;
  std::uint64_t* overflows;  // null: not counted
  BlocktopkShape shape;
};

/// Encodes p of a warp's blocks: selects, codes, and stores the residual. Shared memory holds p
/// until a block is encoded, and then the remainder.
template <typename E>
class BlocktopkCoder {
 public:
  struct Shared {
    BlocktopkSlot slot;
    union {  // the lists are built after the selection
      BlocktopkSelect::Shared select;
      BlocktopkOutputLists lists;
    };
  };

  TERSOR_DEVICE BlocktopkCoder(const BlocktopkTarget& target, Shared& shared)
      : target_(target), slot_(shared.slot), shared_(shared) {}

  /// p = a · gradient + b · residual, or the gradient without feedback.
  template <typename G, class Entry>
  TERSOR_DEVICE void load(const Entry& segment, const BlocktopkUnit& unit, float a, float b) const {
    const auto* gradient = static_cast<const G*>(segment.gradient);
    const bool aligned = is_aligned_for<G, BlocktopkSlot::kRow>(gradient);
    unit.for_each_unit(thread_, [&](unsigned first, const auto& position) {
      if constexpr (!kFeedback && std::is_same_v<G, float>) {
        if (aligned && position.is_whole())
          return slot_.fetch_rows(first, gradient + position.offset(0));
      }
      BlocktopkSlot::Rows p;
      load_rows<Load::kInput>(gradient, position, aligned, p);
      store_with_feedback(segment, first, position, a, b, p);
    });
    async_wait();
  }

  /// p += b · residual.
  template <class Entry>
  TERSOR_DEVICE void add_residual(const Entry& segment, const BlocktopkUnit& unit, float b) const {
    if constexpr (kFeedback)
      unit.for_each_unit(thread_, [&](unsigned first, const auto& position) {
        BlocktopkSlot::Rows p;
        slot_.get_rows(first, p);
        store_with_feedback(segment, first, position, 1.0f, b, p);
      });
  }

  /// Encodes the block, or poisons the block unless `is_valid`.
  template <class Entry>
  TERSOR_DEVICE void write(const Entry& segment, const BlocktopkUnit& unit, bool is_valid) {
    warp_.sync();
    const BlocktopkSelect select(slot_, shared_.select);
    if (!is_valid || select.largest() >= kBlocktopkPoisonBits) {
      unsigned finite = 0;
      for (unsigned i = thread_; i < unit.count(); i += kWarpThreads)
        finite += is_finite(slot_.get(i));
      if (is_valid) add_counts(warp_, finite, target_.overflows);
      return keep_residual(segment, unit, true);
    }
    const BlocktopkSelectedBits selected = select(target_.shape.selected, guess_);
    shared_.lists.clear(warp_, target_.shape);
    visit_kind(target_.shape.value_bits, [&]<BlocktopkValues kValues>(BlocktopkKind<kValues>) {
      code<kValues>(unit, selected, select.largest());
    });
    if constexpr (kFeedback) {
      E* residual = static_cast<E*>(segment.residual_out);
      unit.for_each_unit(thread_, [&](unsigned first, const auto& position) {
        BlocktopkSlot::Rows p;
        slot_.get_rows(first, p);
        store_rows(p, residual, position, is_aligned_for<E, BlocktopkSlot::kRow>(residual));
      });
    }
    warp_.sync();
  }

  /// Sends nothing, or NaNs at the first indices if `poisons`, and keeps the residual.
  template <class Entry>
  TERSOR_DEVICE void keep_residual(const Entry& segment, const BlocktopkUnit& unit,
                                   bool poisons) const {
    const BlocktopkShape& shape = target_.shape;
    shared_.lists.clear(warp_, target_.shape);
    const unsigned selected = shape.selected < unit.count() ? shape.selected : unit.count();
    for (unsigned i = thread_; i < selected && poisons; i += kWarpThreads)
      shared_.lists.put(shape, i, i, shape.value_bits == 16 ? kNarrowNanBits : 0);
    store_lists(unit, poisons ? float_of(kNanBits) : 0.0f);
    if constexpr (kFeedback) {
      const auto* from = static_cast<const E*>(segment.residual_in);
      auto* to = static_cast<E*>(segment.residual_out);
      if (from == to) return;
      for (unsigned i = thread_; i < unit.count(); i += kWarpThreads)
        store(to + unit.first + i, load_unit<Load::kAny>(from + unit.first + i));
    }
  }

 private:
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;

  /// Adds the residual to rows of p, and stores the rows to shared memory.
  template <class Entry, class Position>
  TERSOR_DEVICE void store_with_feedback(const Entry& segment, unsigned first,
                                         const Position& position, float a, float b,
                                         BlocktopkSlot::Rows& p) const {
    if constexpr (kFeedback) {
      const E* residual = static_cast<const E*>(segment.residual_in);
      BlocktopkSlot::Rows old;
      load_rows<Load::kAny>(residual, position, is_aligned_for<E, BlocktopkSlot::kRow>(residual),
                            old);
      TERSOR_UNROLL
      for (unsigned i = 0; i < sizeof p / sizeof(float); ++i) {
        float& value = p[i / BlocktopkSlot::kRow][i % BlocktopkSlot::kRow];
        value = a * value + b * old[i / BlocktopkSlot::kRow][i % BlocktopkSlot::kRow];
      }
    }
    slot_.set_rows(first, p);
  }

  /// Writes the lists of the selected values, and replaces p by the remainder.
  template <BlocktopkValues kValues>
  TERSOR_DEVICE void code(const BlocktopkUnit& unit, const BlocktopkSelectedBits& selected,
                          std::uint32_t largest) const {
    constexpr bool kSign = kValues == BlocktopkValues::kSign;
    const unsigned own = selected.count(), first = warp_.exclusive_sum(own);
    BlocktopkScale scale;
    if constexpr (kValues == BlocktopkValues::kInt4) scale = blocktopk_int4_scale(largest);
    const auto store_remainder = [&](unsigned index) {
      const float p = slot_.get(index);
      slot_.set(index,
                p - blocktopk_value<kValues>(blocktopk_code<kValues>(p, scale), scale.scale));
    };
    unsigned number = first;
    selected.for_each(thread_, [&](unsigned index) {
      const float p = slot_.get(index);
      shared_.lists.put(target_.shape, number, index, blocktopk_code<kValues>(p, scale));
      if constexpr (kSign) shared_.lists.set_magnitude(number, fabsf(p));
      ++number;
    });
    if constexpr (kSign) {
      const unsigned all = warp_.shuffle(first + own, kWarpThreads - 1);
      if (all != 0) scale = blocktopk_sign_scale(tree_sum(all), all);
    }
    if constexpr (kFeedback) selected.for_each(thread_, store_remainder);
    store_lists(unit, scale.scale);
  }

  /// Returns the sum of `count` magnitudes. Zeros follow, up to a power of two of at least 32, and
  /// change no sum. A thread adds the terms of its own remainder modulo 32.
  TERSOR_DEVICE float tree_sum(unsigned count) const {
    auto& lists = shared_.lists;
    unsigned whole = kWarpThreads;
    while (whole < count) whole *= 2;
    for (unsigned i = count + thread_; i < whole; i += kWarpThreads) lists.set_magnitude(i, 0.0f);
    warp_.sync();
    for (unsigned half = whole / 2; half >= kWarpThreads; half /= 2)
      for (unsigned i = thread_; i < half; i += kWarpThreads)
        lists.set_magnitude(i, lists.magnitude(i) + lists.magnitude(i + half));
    float sum = lists.magnitude(thread_);
    TERSOR_UNROLL
    for (unsigned half = kWarpThreads / 2; half != 0; half /= 2)
      sum += float_of(warp_.shuffle_xor(bits_of(sum), half));
    return sum;
  }

  /// Stores the lists. Contains barriers, because the next block uses the same memory.
  TERSOR_DEVICE void store_lists(const BlocktopkUnit& unit, float scale) const {
    if (thread_ < target_.shape.words[0]) shared_.lists.set(thread_, bits_of(scale));
    warp_.sync();
    shared_.lists.store_to(thread_, target_.shape,
                           reinterpret_cast<std::uint32_t*>(target_.payload + unit.offset),
                           BlocktopkOffsets(target_.shape, unit.blocks, unit.index));
    warp_.sync();
  }

  const DeviceWarp warp_{};
  const unsigned thread_ = warp_.thread_rank();
  const BlocktopkTarget& target_;
  BlocktopkSlot& slot_;
  Shared& shared_;
  std::uint32_t guess_ = 0;  // for the next block's selection
};

}  // namespace tersor::kernels
