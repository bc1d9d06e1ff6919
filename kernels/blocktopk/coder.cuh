// Encodes p of 4,096 values with a block of threads on a device. The encoder selects the k largest
// values, builds the lists in shared memory, writes the lists, and stores the residual.
#pragma once

#include "kernels/blocktopk/select.cuh"
#include "kernels/device/call.cuh"
#include "kernels/device/row.cuh"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// A block of values of a segment.
struct BlocktopkUnit {
  std::size_t first;  // index of the first value in the segment
  unsigned count;     // number of values
  std::size_t index;  // index among the segment's blocks
  std::size_t blocks;

  template <class Entry>
  TERSOR_DEVICE BlocktopkUnit(const Entry& segment, std::uint32_t unit)
      : first(std::size_t{unit - segment.first_unit} * kBlocktopkValues),
        count(segment.count - first < kBlocktopkValues
                  ? static_cast<unsigned>(segment.count - first)
                  : kBlocktopkValues),
        index(unit - segment.first_unit),
        blocks((segment.count + kBlocktopkValues - 1) / kBlocktopkValues) {}

  /// Calls visit(row, position) for each row of a thread. The segment's values have type T and
  /// start at `values`. The position `position` is relative to `values`.
  template <typename T, class Visit>
  TERSOR_DEVICE void for_each_row(unsigned thread, const T* values, const Visit& visit) const {
    const bool aligned = is_aligned_for<T, kBlocktopkRow>(values);
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      const unsigned at = blocktopk_position(thread, row, 0);
      visit(row, RowPosition{first + at, at < count ? count - at : 0u, aligned});
    }
  }

  template <Load kLoad, typename T>
  TERSOR_DEVICE void load_from(unsigned thread, const T* values, BlocktopkRows& rows) const {
    for_each_row(thread, values, [&](unsigned row, RowPosition position) {
      load_row<kLoad>(values, position, rows[row]);
    });
  }
  template <typename T>
  TERSOR_DEVICE void store_to(unsigned thread, const BlocktopkRows& rows, T* values) const {
    for_each_row(thread, values, [&](unsigned row, RowPosition position) {
      store_row(rows[row], values, position);
    });
  }
};

/// The output of a kernel.
struct BlocktopkTarget {
  std::byte* payload;
  std::uint64_t* overflows;  // null: not counted
  BlocktopkShape shape;
};

/// Encodes p of a block: selects, codes, and stores the residual.
template <typename E>
class BlocktopkCoder {
 public:
  static constexpr unsigned kWarps = kBlocktopkThreads / kWarpThreads;
  struct Shared {
    typename BlocktopkSelect::Shared select;
    BlocktopkWritten lists;
    SharedArray<float, BlocktopkBlock::kMostSelected> magnitudes;
    SharedArray<std::uint32_t, kWarps> largest;
  };

  /// Creates a coder from an EncodeEntry or a ReduceEntry.
  template <class Entry>
  TERSOR_DEVICE BlocktopkCoder(const BlocktopkTarget& target, const Entry& segment,
                               std::uint32_t unit, Shared& shared)
      : target_(target),
        sections_(reinterpret_cast<std::uint32_t*>(target.payload + segment.offset)),
        residual_in_(static_cast<const E*>(segment.residual_in)),
        residual_out_(static_cast<E*>(segment.residual_out)),
        unit_(segment, unit),
        shared_(shared) {}

  TERSOR_DEVICE const BlocktopkUnit& unit() const { return unit_; }

  /// p = a · p + b · residual.
  TERSOR_DEVICE void feed(unsigned thread, float a, float b, BlocktopkRows& p) const {
    if constexpr (kFeedback) {
      BlocktopkRows old;
      unit_.load_from<Load::kAny>(thread, residual_in_, old);
      TERSOR_UNROLL
      for (unsigned row = 0; row < kBlocktopkRows; ++row) {
        TERSOR_UNROLL
        for (unsigned i = 0; i < kBlocktopkRow; ++i) p[row][i] = a * p[row][i] + b * old[row][i];
      }
    }
  }

  /// Sends nothing and keeps the residual.
  template <class Block>
  TERSOR_DEVICE void keep(const Block& block) const {
    shared_.lists.clear(block);
    block.sync();
    keep_residual(block);
    store_lists(block, 0);
  }

  /// Encodes the block and replaces p by the remainder. Contains barriers.
  template <class Block>
  TERSOR_DEVICE void write(const Block& block, BlocktopkRows& p, bool is_sound) const {
    shared_.lists.clear(block);
    const std::uint32_t largest = largest_key(block, p);
    if (largest >= kBlocktopkPoisonBits || !is_sound) return poison(block, p, is_sound);
    const BlocktopkCut cut = BlocktopkSelect::cut(block, shared_.select, p, target_.shape.selected);
    std::uint16_t chosen[kBlocktopkRows] = {};
    number_values(
        block, [&](unsigned row, unsigned i) { return magnitude_bits(p[row][i]) == cut.key; },
        [&](unsigned row, unsigned i, unsigned number) {
          if (number < cut.ties) chosen[row] |= 1u << i;
        });
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i)
        if (magnitude_bits(p[row][i]) > cut.key) chosen[row] |= 1u << i;
    }
    visit_kind(target_.shape.value_bits, [&]<BlocktopkValues kValues>(BlocktopkKind<kValues>) {
      code<kValues>(block, largest, chosen, p);
    });
    if constexpr (kFeedback) unit_.store_to(block.thread_rank(), p, residual_out_);
  }

 private:
  static constexpr bool kFeedback = !std::is_same_v<E, NoResidual>;

  template <class Block>
  TERSOR_DEVICE std::uint32_t largest_key(const Block& block, const BlocktopkRows& p) const {
    std::uint32_t own = 0;
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i) {
        const std::uint32_t key = magnitude_bits(p[row][i]);
        own = key > own ? key : own;
      }
    }
    own = block.warp().maximum(own);
    if (block.warp().thread_rank() == 0) shared_.largest.set(block.warp_rank(), own);
    block.sync();
    std::uint32_t largest = 0;
    TERSOR_UNROLL
    for (unsigned warp = 0; warp < kWarps; ++warp) {
      const std::uint32_t of_warp = shared_.largest.get(warp);
      largest = of_warp > largest ? of_warp : largest;
    }
    return largest;
  }

  template <BlocktopkValues kValues, class Block>
  TERSOR_DEVICE void code(const Block& block, std::uint32_t largest,
                          const std::uint16_t (&chosen)[kBlocktopkRows], BlocktopkRows& p) const {
    std::uint16_t number[kBlocktopkRows][kBlocktopkRow];
    const unsigned selected = number_values(
        block, [&](unsigned row, unsigned i) { return (chosen[row] >> i & 1u) != 0; },
        [&](unsigned row, unsigned i, unsigned n) {
          number[row][i] = static_cast<std::uint16_t>(n);
          if constexpr (kValues == BlocktopkValues::kSign)
            shared_.magnitudes.set(n, float_of(magnitude_bits(p[row][i])));
        });
    const BlocktopkScale scale = scale_of<kValues>(block, largest, selected);
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i) {
        if ((chosen[row] >> i & 1u) == 0) continue;
        const std::uint32_t code = blocktopk_code<kValues>(p[row][i], scale);
        shared_.lists.put(target_.shape, number[row][i],
                          blocktopk_position(block.thread_rank(), row, i), code);
        p[row][i] -= blocktopk_value<kValues>(code, scale.scale);
      }
    }
    block.sync();
    store_lists(block, bits_of(scale.scale));
  }

  template <BlocktopkValues kValues, class Block>
  TERSOR_DEVICE BlocktopkScale scale_of(const Block& block, std::uint32_t largest,
                                        unsigned selected) const {
    if constexpr (kValues == BlocktopkValues::kInt4) return blocktopk_int4_scale(largest);
    if constexpr (kValues == BlocktopkValues::kBf16) return {};
    if (selected == 0) return {};
    return blocktopk_sign_scale(tree_sum(block, selected), selected);
  }

  /// Returns the sum of the selected magnitudes. Contains barriers.
  template <class Block>
  TERSOR_DEVICE float tree_sum(const Block& block, unsigned selected) const {
    unsigned whole = 1;
    while (whole < selected) whole *= 2;
    for (unsigned i = selected + block.thread_rank(); i < whole; i += Block::threads())
      shared_.magnitudes.set(i, 0.0f);
    for (unsigned half = whole / 2; half != 0; half /= 2) {
      block.sync();
      for (unsigned i = block.thread_rank(); i < half; i += Block::threads())
        shared_.magnitudes.set(i, shared_.magnitudes.get(i) + shared_.magnitudes.get(i + half));
    }
    block.sync();
    return shared_.magnitudes.get(0);
  }

  /// Sends NaNs at the first indices and keeps the residual.
  template <class Block>
  TERSOR_DEVICE void poison(const Block& block, const BlocktopkRows& p, bool is_sound) const {
    const BlocktopkShape& shape = target_.shape;
    const unsigned selected = shape.selected < unit_.count ? shape.selected : unit_.count;
    const std::uint32_t code = shape.value_bits == 16 ? kNarrowNanBits : 0;
    for (unsigned i = block.thread_rank(); i < selected; i += Block::threads())
      shared_.lists.put(shape, i, i, code);
    keep_residual(block);
    if (is_sound) count_finite(block, p);
    block.sync();
    store_lists(block, kNanBits);
  }

  template <class Block>
  TERSOR_DEVICE void count_finite(const Block& block, const BlocktopkRows& p) const {
    unsigned count = 0;
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i)
        count +=
            blocktopk_position(block.thread_rank(), row, i) < unit_.count && is_finite(p[row][i]);
    }
    add_counts(block.warp(), count, target_.overflows);
  }

  template <class Block>
  TERSOR_DEVICE void keep_residual(const Block& block) const {
    if constexpr (kFeedback) {
      if (residual_in_ == residual_out_) return;
      unit_.for_each_row(block.thread_rank(), residual_in_, [&](unsigned, RowPosition position) {
        copy_row<E, kBlocktopkRow>(residual_in_, residual_out_, position);
      });
    }
  }

  /// Stores the lists. A barrier follows, because the next block uses the same memory.
  template <class Block>
  TERSOR_DEVICE void store_lists(const Block& block, std::uint32_t scale_bits) const {
    shared_.lists.store_to(block, target_.shape, scale_bits, sections_,
                           BlocktopkOffsets(target_.shape, unit_.blocks, unit_.index));
    block.sync();
  }

  const BlocktopkTarget& target_;
  std::uint32_t* sections_;
  const E* residual_in_;
  E* residual_out_;
  BlocktopkUnit unit_;
  Shared& shared_;
};

}  // namespace tersor::kernels
