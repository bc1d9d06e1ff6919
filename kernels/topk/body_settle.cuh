// The settle kernel, for int8 values: writes scales and codes of the selected values, and the
// remainders to the residual.
//
// Grid: each warp processes 256 selected values at a time. Per sent value, the kernel reads 4
// bytes, writes a code of 1 byte, and writes 4 bytes to the residual. Per scale, the kernel writes
// 4 bytes.
#pragma once

#include "kernels/quantize/int8.h"
#include "kernels/topk/body_tensor.cuh"

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tersor::kernels {

template <typename E>
struct TopkSettleKernel : LaunchBounds<256, 4> {
  static constexpr unsigned kBlock = Int8Format::kBlock;
  static constexpr unsigned kValuesPerThread = kBlock / 32;  // values per thread
  static_assert(kBlock == TopkLayout::kBlock);

  const TopkControl* control;
  const float* chosen;
  E* residual_out;
  TopkTarget target;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    const std::uint32_t path = load_input(&control->path);
    if (path == kTopkInactive) return;
    const std::size_t selected =
        path == std::uint32_t(TopkPath::kPoison) ? 0 : load_input(&control->selected);
    const std::size_t stride = std::size_t{block.blocks()} * block.warps();
    for (std::size_t i = std::size_t{block.rank()} * block.warps() + block.warp_rank();
         i < target.layout.blocks(); i += stride)
      quantize(block.warp(), i, selected);
  }

 private:
  template <class Warp>
  TERSOR_DEVICE void quantize(const Warp& warp, std::size_t index, std::size_t selected) const {
    const std::size_t begin = index * kBlock;
    const std::size_t k = target.layout.selected;
    float p[kValuesPerThread];
    std::uint32_t max_key = 0;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kValuesPerThread; ++i) {
      const std::size_t position = begin + i * 32 + warp.thread_rank();
      p[i] = position < k ? load_input(chosen + position) : 0.0f;
      max_key = topk_key(p[i]) > max_key ? topk_key(p[i]) : max_key;
    }
    const BlockScale scale = block_scale<Int8Format>(warp.maximum(max_key));
    if (warp.thread_rank() == 0) store(target.scales() + index, scale.scale);
    const Tiles tiles = begin < selected ? tiles_of(begin, selected) : Tiles{0, 0};
    TERSOR_UNROLL
    for (unsigned i = 0; i < kValuesPerThread; ++i) {
      const std::size_t position = begin + i * 32 + warp.thread_rank();
      const std::int32_t code = scale.poisoned ? 0 : nearest_code(nearest_sum(p[i], scale.inverse));
      if (position < k)
        store(target.template values<std::int8_t>() + position, static_cast<std::int8_t>(code));
      if (position < selected) correct(tiles, position, p[i] - code_value(code, scale.scale));
    }
  }

  /// Tiles [low, high] that contain the values of a block.
  struct Tiles {
    std::size_t low, high;
  };

  TERSOR_DEVICE Tiles tiles_of(std::size_t begin, std::size_t selected) const {
    const Tiles all{0, target.layout.tiles() - 1};
    if constexpr (std::is_same_v<E, NoResidual>) return all;
    const std::size_t end = begin + kBlock < selected ? begin + kBlock : selected;
    return {tile_of(all, begin), tile_of(all, end - 1)};
  }

  /// Returns the last tile whose first value is at or before `position`.
  TERSOR_DEVICE std::size_t tile_of(Tiles tiles, std::size_t position) const {
    while (tiles.low < tiles.high) {
      const std::size_t middle = (tiles.low + tiles.high + 1) / 2;
      if (load_input(target.first() + middle) <= position)
        tiles.low = middle;
      else
        tiles.high = middle - 1;
    }
    return tiles.low;
  }

  TERSOR_DEVICE void correct(Tiles tiles, std::size_t position, float remainder) const {
    if constexpr (!std::is_same_v<E, NoResidual>) {
      const std::size_t first = tile_of(tiles, position) * kTopkTile;
      store(residual_out + first + load_input(target.index_in_tile() + position),
            from_f32<E>(remainder));
    }
  }
};

}  // namespace tersor::kernels
