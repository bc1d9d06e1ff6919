// The kernels that find the largest finite magnitude of each segment, before a format with a number
// for a whole segment is encoded. The number lies at the start of the segment's sections.
#pragma once

#include "kernels/device/call.cuh"
#include "kernels/device/units.cuh"
#include "kernels/quantize/body.cuh"
#include "kernels/quantize/unit.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// A pass over the units of all segments. An earlier launch of the same kernel clears the numbers.
template <class Entry, unsigned kCapacity>
struct LargestKernel : UnitKernel {
  static constexpr unsigned kResident = 2;

  SegmentTable<Entry, kCapacity> table;
  std::byte* payload;
  CallWords words;
  bool clears;

  template <class Block>
  TERSOR_DEVICE void clear(const Block& block) const {
    if (block.rank() != 0) return;
    for (unsigned i = block.thread_rank(); i < table.entries; i += block.threads())
      store(reinterpret_cast<Words128*>(payload + table.entry[i].offset), Words128{});
  }

  /// Compares a unit of p with the number of its segment.
  template <unsigned kRow, class Warp>
  TERSOR_DEVICE void add(const Warp& warp, const Entry& segment, const Rows<kRow>& p) const {
    std::uint32_t most = 0;
    TERSOR_UNROLL
    for (unsigned chunk = 0; chunk < kUnitChunks<kRow>; ++chunk) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        const std::uint32_t bits = magnitude_bits(p[chunk][i]);
        if (bits < kInfinityBits && bits > most) most = bits;
      }
    }
    most = warp.maximum(most);
    if (warp.thread_rank() == 0 && most != 0)
      atomicMax(reinterpret_cast<std::uint32_t*>(payload + segment.offset), most);
  }
};

template <typename G, typename E, unsigned kCapacity>
struct LargestSentKernel : LargestKernel<EncodeEntry, kCapacity> {
  static constexpr unsigned kRow = 16 / sizeof(G);

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, typename UnitKernel::Shared&) const {
    if (this->clears) return this->clear(block);
    const float a = this->words.gradient_factor(), b = this->words.residual_factor();
    for_each_unit<kRow>(block, this->table, [&](const EncodeEntry& segment, const auto& position) {
      if (is_inactive(segment)) return;
      Rows<kRow> p;
      load_sent<G>(segment, ResidualRows<E, kRow>::of(segment), position, a, b, p);
      this->template add<kRow>(block.warp(), segment, p);
    });
  }
};

template <class Format, typename E, unsigned kMaxSegments, unsigned kMaxFrames>
struct LargestSumKernel : LargestKernel<ReduceEntry, kMaxSegments> {
  using Coder = QuantizeSumCoder<Format, E, NoiseKind::kNone>;
  static constexpr unsigned kRow = Coder::kRow;

  FrameList<kMaxFrames> list;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, typename UnitKernel::Shared&) const {
    if (this->clears) return this->clear(block);
    if (!list.check(block)) return;
    const float b = this->words.residual_factor();
    for_each_unit<kRow>(block, this->table, [&](const ReduceEntry& segment, const auto& position) {
      Rows<kRow> p = {};
      Coder::add_all_frames(segment, position, list, factor, p);
      ResidualRows<E, kRow>::of(segment).add_to(position, 1.0f, b, p);
      this->template add<kRow>(block.warp(), segment, p);
    });
  }
};

}  // namespace tersor::kernels
