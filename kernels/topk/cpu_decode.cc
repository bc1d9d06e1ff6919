// Adds sparse payloads tile by tile. The outputs of a tile stay in the cache while all payloads are
// added. Outputs of 16 bits are summed in f32 in a scratch tile per task.
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "kernels/quantize/formulas.h"
#include "kernels/quantize/int8.h"
#include "kernels/topk/cpu.h"

#include <tersor/align.h>
#include <tersor/error.h>

#include <algorithm>
#include <string>

namespace tersor::kernels {
namespace {

constexpr std::size_t kMinTilesPerTask = 4;  // tiles; a smaller task is not worth a thread

/// Values [begin, end) of the gradient, all within tile `index`.
struct Tile {
  std::size_t index;
  std::size_t begin;
  std::size_t end;
};

/// Selected values [begin, end) of a payload.
struct Selected {
  std::size_t begin;
  std::size_t end;
};

/// Returns the selected values of a payload within a part of a tile.
Selected selected_in(const TopkPayloadView& payload, const Tile& tile) {
  const std::uint16_t* index = payload.index_in_tile;
  const std::uint16_t* first = index + payload.first[tile.index];
  const std::uint16_t* last = index + payload.first[tile.index + 1];
  const std::size_t tile_begin = tile.index * kTopkTile;
  if (tile.begin != tile_begin) first = std::lower_bound(first, last, tile.begin - tile_begin);
  if (tile.end != tile_begin + kTopkTile)
    last = std::lower_bound(first, last, tile.end - tile_begin);
  return {static_cast<std::size_t>(first - index), static_cast<std::size_t>(last - index)};
}

/// Adds value · factor to sum[index] for a range of selected values. The visitor `value_of(i)`
/// returns selected value i.
template <typename ValueOf>
void add_selected(const std::uint16_t* index, Selected selected, float factor, float* sum,
                  ValueOf value_of) {
  for (std::size_t i = selected.begin; i < selected.end; ++i) {
    const float contribution = topk_contribution(value_of(i), factor);
    sum[index[i]] += contribution;
  }
}

class Decoder {
 public:
  Decoder(const TopkDecode& task, Threads& threads) : task_(task), threads_(threads) {
    first_tile_ = task.begin / kTopkTile;
    tiles_ = task.begin == task.end ? 0 : ceil_div(task.end, kTopkTile) - first_tile_;
    tasks_ = std::clamp<std::size_t>(tiles_ / kMinTilesPerTask, 1, threads.count());
    scratch_ = reinterpret_cast<float*>(
        align_up(reinterpret_cast<std::uintptr_t>(task.workspace.data()), kAlignment));
  }

  void run() {
    threads_.run(tasks_, [&](std::size_t task) {
      for (std::size_t i = tiles_ * task / tasks_; i < tiles_ * (task + 1) / tasks_; ++i)
        decode_tile(tile(i), scratch_ + task * kTopkTile);
    });
  }

  static constexpr std::size_t kAlignment = 64;

 private:
  Tile tile(std::size_t number) const {
    const std::size_t index = first_tile_ + number;
    return {index, std::max(task_.begin, index * kTopkTile),
            std::min(task_.end, (index + 1) * kTopkTile)};
  }

  void decode_tile(const Tile& tile, float* scratch) const {
    auto* output = static_cast<std::byte*>(task_.output) +
                   (tile.begin - task_.begin) * dtype_bytes(task_.dtype);
    const std::size_t count = tile.end - tile.begin;
    if (task_.dtype == Dtype::kF32) return sum_tile(tile, reinterpret_cast<float*>(output));
    if (task_.mode == DecodeMode::kAdd) widen(output, count, scratch);
    sum_tile(tile, scratch);
    narrow(scratch, count, output);
  }

  void sum_tile(const Tile& tile, float* sum) const {
    if (task_.mode == DecodeMode::kAssign) std::fill_n(sum, tile.end - tile.begin, 0.0f);
    float* tile_sum = sum - (tile.begin - tile.index * kTopkTile);
    for (const TopkPayloadView& payload : task_.payloads)
      add_payload(payload, selected_in(payload, tile), tile_sum);
  }

  void add_payload(const TopkPayloadView& payload, Selected selected, float* sum) const {
    const std::uint16_t* index = payload.index_in_tile;
    const float factor = task_.factor;
    if (task_.value_dtype == Dtype::kBf16) {
      const auto* values = static_cast<const Bf16*>(payload.values);
      add_selected(index, selected, factor, sum, [=](std::size_t i) { return to_f32(values[i]); });
    } else if (task_.value_dtype == Dtype::kI8) {
      const auto* codes = static_cast<const std::int8_t*>(payload.values);
      const float* scales = payload.scales;
      add_selected(index, selected, factor, sum, [=](std::size_t i) {
        return code_value(codes[i], scales[i / Int8Format::kBlock]);
      });
    } else {
      const auto* values = static_cast<const float*>(payload.values);
      add_selected(index, selected, factor, sum, [=](std::size_t i) { return values[i]; });
    }
  }

  void widen(const void* values, std::size_t count, float* sum) const {
    loops().decode(
        {.payloads = {&values, 1}, .count = count, .to = {.output = sum, .dtype = Dtype::kF32}});
  }

  void narrow(float* sum, std::size_t count, void* output) const {
    if (task_.dtype == Dtype::kF16) std::transform(sum, sum + count, sum, within_f16);
    loops().encode({.sent = {sum, Dtype::kF32, count}, .output = {.values = output}});
  }

  CastLoops loops() const {
    return task_.dtype == Dtype::kBf16 ? cast_loops<Bf16Format>() : cast_loops<F16Format>();
  }

  const TopkDecode& task_;
  Threads& threads_;
  std::size_t first_tile_;
  std::size_t tiles_;
  std::size_t tasks_;
  float* scratch_;
};

void check(const TopkDecode& task, Threads& threads) {
  if (!is_gradient_dtype(task.dtype))
    throw InvalidArgumentError("top-k decodes to f32, bf16 or f16, not " +
                               std::string(dtype_name(task.dtype)));
  if (task.value_dtype != Dtype::kF32 && task.value_dtype != Dtype::kBf16 &&
      task.value_dtype != Dtype::kI8)
    throw InvalidArgumentError("top-k decodes f32, bf16 or i8 values, not " +
                               std::string(dtype_name(task.value_dtype)));
  if (task.begin > task.end || task.end > task.count)
    throw InvalidArgumentError("values " + std::to_string(task.begin) + " to " +
                               std::to_string(task.end) + " lie outside a gradient of " +
                               std::to_string(task.count));
  const std::size_t bytes = topk_decode_workspace_bytes(task.dtype, threads.count());
  if (task.workspace.size() < bytes)
    throw InvalidArgumentError("decoding top-k needs " + std::to_string(bytes) +
                               " bytes of workspace, not " + std::to_string(task.workspace.size()));
}

/// True if the indices of one tile strictly ascend. The loop has no early exit because compilers
/// vectorise only loops without early exits.
bool ascends(const std::uint16_t* index, std::size_t count) {
  std::uint16_t unordered = 0;
  for (std::size_t i = 1; i < count; ++i) unordered |= index[i - 1] >= index[i];
  return unordered == 0;
}

}  // namespace

const char* topk_validate(const TopkPayloadView& payload, std::size_t count, std::size_t k) {
  const std::uint32_t* first = payload.first;
  const std::size_t tiles = ceil_div(count, kTopkTile);
  if (first[0] != 0) return "the selected values of the first tile do not begin at 0";
  for (std::size_t tile = 0; tile < tiles; ++tile)
    if (first[tile + 1] < first[tile]) return "the tiles' first selected values do not ascend";
  if (first[tiles] > k) return "more values are selected than the payload holds";
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    const std::size_t selected = first[tile + 1] - first[tile];
    if (selected == 0) continue;
    const std::uint16_t* index = payload.index_in_tile + first[tile];
    if (!ascends(index, selected)) return "the indices of a tile do not ascend";
    if (tile * kTopkTile + index[selected - 1] >= count)
      return "an index lies beyond the last value";
  }
  return nullptr;
}

std::size_t topk_decode_workspace_bytes(Dtype dtype, unsigned threads) {
  if (dtype == Dtype::kF32) return 0;
  return threads * kTopkTile * sizeof(float) + Decoder::kAlignment - 1;
}

void topk_decode(const TopkDecode& task, Threads& threads) {
  check(task, threads);
  if (task.begin != task.end) Decoder(task, threads).run();
}

}  // namespace tersor::kernels
