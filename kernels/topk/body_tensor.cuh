// Row-by-row access to a segment for the top-k kernels: the corrected gradient p = a · g + b · e,
// and the residual. After the scan, p is read back from the residual if the residual holds p
// exactly, and otherwise computed again.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/queue.cuh"
#include "kernels/device/row.cuh"
#include "kernels/topk/device_plan.h"

#include <tersor/codecs/topk.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

/// `E` is the residual type or NoResidual.
template <typename G, typename E>
struct TopkTensor {
  const G* gradient;
  const E* residual_in;
  E* residual_out;
  const std::uint32_t* active;
  CallWords words;
  std::uint64_t count;
  std::uint32_t limit;  // keys from here on are non-finite
};

/// Address and layout of a segment's payload.
struct TopkTarget {
  std::byte* payload;
  TopkLayout layout;

  TERSOR_DEVICE std::uint32_t* first() const { return reinterpret_cast<std::uint32_t*>(payload); }
  TERSOR_DEVICE std::uint16_t* index_in_tile() const {
    return reinterpret_cast<std::uint16_t*>(payload + layout.index_offset());
  }
  TERSOR_DEVICE float* scales() const {
    return reinterpret_cast<float*>(payload + layout.scales_offset());
  }
  template <typename T>
  TERSOR_DEVICE T* values() const {
    return reinterpret_cast<T*>(payload + layout.values_offset());
  }
};

/// The arguments shared by all kernels of a segment.
template <typename G, typename E>
struct TopkTask {
  TopkTensor<G, E> tensor;
  TopkDevicePlan plan;
  TopkDeviceMemory memory;
};

/// Reads and writes rows of a segment. `first` is the index of a row's first value within the
/// segment. Values after the segment's end read as 0 and are not written.
template <typename G, typename E>
class TopkReader {
 public:
  static constexpr unsigned kRow = 16 / sizeof(G);
  static constexpr bool kHasResidual = !std::is_same_v<E, NoResidual>;
  static constexpr bool kResidualHoldsSum =
      std::is_same_v<E, float>;  // True if the residual can hold p
  using Row = float[kRow];

  TERSOR_DEVICE explicit TopkReader(const TopkTensor<G, E>& tensor)
      : tensor_(tensor), gradient_aligned_(is_aligned_for<G, kRow>(tensor.gradient)) {
    if constexpr (kHasResidual) {
      a_ = tensor.words.gradient_factor();
      b_ = tensor.words.residual_factor();
      residual_aligned_ = is_aligned_for<E, kRow>(tensor.residual_in) &&
                          is_aligned_for<E, kRow>(tensor.residual_out);
    }
  }

  TERSOR_DEVICE bool is_in_place() const { return tensor_.residual_in == tensor_.residual_out; }

  /// True if the scan may write the residual. The old residual must be recoverable if p is
  /// non-finite. An in-place residual is recovered by arithmetic, which needs f32 and b != 0.
  /// Otherwise the residual is written after the selection is known.
  TERSOR_DEVICE bool writes_in_scan() const {
    if constexpr (!kHasResidual) return false;
    return !is_in_place() || (kResidualHoldsSum && b_ != 0);
  }
  TERSOR_DEVICE bool writes_after_scan() const { return kHasResidual && !writes_in_scan(); }

  /// True if the rows of [first, first + values) are whole and aligned.
  TERSOR_DEVICE bool is_plain(std::size_t first, std::size_t values) const {
    return gradient_aligned_ && (!kHasResidual || residual_aligned_) &&
           first + values <= tensor_.count;
  }

  TERSOR_DEVICE RowPosition position(std::size_t first) const {
    return {first, first < tensor_.count ? tensor_.count - first : 0, false};
  }
  TERSOR_DEVICE static RowPosition plain_position(std::size_t first) { return {first, kRow, true}; }

  TERSOR_DEVICE void load_gradient(RowPosition position, Row& row) const {
    position.aligned |= gradient_aligned_;
    load_row<Load::kInput>(tensor_.gradient, position, row);
  }
  TERSOR_DEVICE void load_residual(RowPosition position, Row& row) const {
    if constexpr (kHasResidual) {
      position.aligned |= residual_aligned_;
      load_row<Load::kAny>(tensor_.residual_in, position, row);
    }
  }
  TERSOR_DEVICE void store_residual(RowPosition position, const Row& row) const {
    if constexpr (kHasResidual) {
      position.aligned |= residual_aligned_;
      store_row(row, tensor_.residual_out, position);
    }
  }
  TERSOR_DEVICE void store_residual_at(std::size_t position, float value) const {
    if constexpr (kHasResidual) store(tensor_.residual_out + position, from_f32<E>(value));
  }

  /// Computes p of a row of the gradient.
  TERSOR_DEVICE void add_feedback(Row& row, const Row& residual) const {
    if constexpr (kHasResidual) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) row[i] = a_ * row[i] + b_ * residual[i];
    }
  }

  TERSOR_DEVICE void load_sum(RowPosition position, Row& row) const {
    load_gradient(position, row);
    if constexpr (kHasResidual) {
      Row residual;
      load_residual(position, residual);
      add_feedback(row, residual);
    }
  }

  /// Loads p after the scan. Non-finite values may have changed.
  TERSOR_DEVICE void reload_sum(RowPosition position, Row& row) const {
    if constexpr (kResidualHoldsSum) {
      position.aligned |= residual_aligned_;
      if (writes_in_scan())
        return load_row<Load::kAny>(static_cast<const E*>(tensor_.residual_out), position, row);
    }
    load_sum(position, row);
  }

  /// Restores the old residual of a row, within one rounding, if the residual is in place and holds
  /// p.
  TERSOR_DEVICE void restore(RowPosition position, const Row& row) const {
    if constexpr (kResidualHoldsSum) {
      Row gradient;
      load_gradient(position, gradient);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        if (i < position.left && topk_key(row[i]) < tensor_.limit)
          store_residual_at(position.first + i, topk_restore(row[i], gradient[i], a_, b_));
      }
    }
  }

  /// Copies the old residual bit by bit, if the residual is not in place.
  TERSOR_DEVICE void copy_residual(RowPosition position) const {
    if constexpr (kHasResidual)
      copy_row<E, kRow>(tensor_.residual_in, tensor_.residual_out, position);
  }

 private:
  const TopkTensor<G, E>& tensor_;
  float a_ = 1, b_ = 1;
  bool gradient_aligned_;
  bool residual_aligned_ = false;
};

/// Calls visit(first) for the first value of each row of the segment, in parallel over the grid.
template <class Reader, class Block, class Visit>
TERSOR_DEVICE void for_each_row(const Block& block, std::size_t count, const Visit& visit) {
  const std::size_t stride = std::size_t{block.blocks()} * block.threads() * Reader::kRow;
  for (std::size_t first =
           (std::size_t{block.rank()} * block.threads() + block.thread_rank()) * Reader::kRow;
       first < count; first += stride)
    visit(first);
}

/// The rows of a part held by one thread of a block of kTopkThreads threads.
template <class Reader>
struct TopkPartRows {
  static constexpr unsigned kRow = Reader::kRow;
  static constexpr unsigned kRows = kTopkPart / kTopkThreads / kRow;
  static constexpr unsigned kRowStep = kTopkThreads * kRow;  // values between the rows of a thread

  float value[kRows][kRow];

  TERSOR_DEVICE static std::size_t first_of(std::size_t part, unsigned row, unsigned thread) {
    return part * kTopkPart + row * kRowStep + thread * kRow;
  }

  /// Calls visit(position_of), where position_of returns the position of each row. All rows of a
  /// plain part are known to be whole, and therefore no branch separates the loads of one row from
  /// the loads of the next.
  template <class Visit>
  TERSOR_DEVICE static void with_positions(const Reader& reader, std::size_t part, unsigned thread,
                                           const Visit& visit) {
    if (reader.is_plain(part * kTopkPart, kTopkPart))
      visit([&](unsigned row) { return Reader::plain_position(first_of(part, row, thread)); });
    else
      visit([&](unsigned row) { return reader.position(first_of(part, row, thread)); });
  }

  TERSOR_DEVICE void reload(const Reader& reader, std::size_t part, unsigned thread) {
    with_positions(reader, part, thread, [&](const auto& position_of) {
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row) reader.reload_sum(position_of(row), value[row]);
    });
  }
};

}  // namespace tersor::kernels
