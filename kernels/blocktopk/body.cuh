// The kernels of blocktopk. A warp processes a block of 4,096 values at a time. The values lie in
// shared memory between the single read and the single write, and the lists are built there.
//
// Grid: as many blocks of threads as are resident, each a warp that strides over the blocks of
// values. Shared memory limits their number: 21 KiB per warp. Memory traffic in bytes per value,
// for f32, 1 % and signs:
//   Encode: 4 read and 0.015 written. Error feedback adds 4 read and 4 written.
//   Decode: 0.015 read per frame and 4 written.
//   Reduce: 0.015 read per frame and 0.015 written. The owner's residual adds 4 read and 4 written.
#pragma once

#include "kernels/blocktopk/coder.cuh"
#include "kernels/blocktopk/frames.cuh"
#include "kernels/device/queue.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

struct BlocktopkKernel : LaunchBounds<kWarpThreads, 10> {
  using Block = DeviceBlock<kThreads, kScans>;

  /// Calls visit(segment, unit) for each block of values processed by this warp.
  template <class Table, class Visit>
  TERSOR_DEVICE static void for_each_unit(const Block& block, const Table& table,
                                          const Visit& visit) {
    TERSOR_KEEP_LOOP
    for (std::size_t unit = block.rank(); unit < table.units; unit += block.blocks()) {
      const auto number = static_cast<std::uint32_t>(unit);
      const auto& segment = table.find(number);
      visit(segment, BlocktopkUnit(segment, number));
    }
  }
};

template <typename G, typename E, unsigned kCapacity>
struct BlocktopkEncodeKernel : BlocktopkKernel {
  using Coder = BlocktopkCoder<E>;
  using Shared = typename Coder::Shared;

  SegmentTable<EncodeEntry, kCapacity> table;
  BlocktopkTarget target;
  CallWords words;
  NextWords next;
  FrameSeal seal;

  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    next.write(block);
    const float a = words.gradient_factor(), b = words.residual_factor();
    Coder coder(target, shared);
    for_each_unit(block, table, [&](const EncodeEntry& segment, const BlocktopkUnit& unit) {
      if (is_inactive(segment)) return coder.keep_residual(segment, unit, false);
      coder.template load<G>(segment, unit, a, b);
      coder.write(segment, unit, true);
    });
  }
};

template <typename T, unsigned kMaxSegments, unsigned kMaxFrames>
struct BlocktopkDecodeKernel : BlocktopkKernel {
  using Table = SegmentTable<DecodeEntry, kMaxSegments>;
  using Frames = BlocktopkFrames<Table, FrameList<kMaxFrames>>;
  struct Shared {
    BlocktopkSlot slot;
    BlocktopkStaged staged;
  };

  Table table;  // `parameter`: index in the call
  FrameList<kMaxFrames> list;
  BlocktopkShape shape;
  float factor;
  DecodeMode mode;

  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const DeviceWarp warp;
    const Frames frames{table, list, shape, factor, shared.staged, list.check(block)};
    frames.start(block.rank());
    for_each_unit(block, table, [&](const DecodeEntry& segment, const BlocktopkUnit& unit) {
      T* output = static_cast<T*>(segment.output);
      const bool aligned = is_aligned_for<T, BlocktopkSlot::kRow>(output);
      unit.for_each_unit(warp.thread_rank(), [&](unsigned first, const auto& position) {
        BlocktopkSlot::Rows rows = {};
        if (mode == DecodeMode::kAdd) load_rows<Load::kAny>(output, position, aligned, rows);
        shared.slot.set_rows(first, rows);
      });
      const bool valid =
          frames.add(segment.parameter, unit, unit.number + block.blocks(), shared.slot);
      unit.for_each_unit(warp.thread_rank(), [&](unsigned first, const auto& position) {
        BlocktopkSlot::Rows rows;
        shared.slot.get_rows(first, rows);
        if (!valid) fill_rows<BlocktopkSlot::kRow>(rows, float_of(kNanBits));
        store_rows(rows, output, position, aligned);
      });
      warp.sync();
    });
  }
};

template <typename E, unsigned kMaxSegments, unsigned kMaxFrames>
struct BlocktopkReduceKernel : BlocktopkKernel {
  using Table = SegmentTable<ReduceEntry, kMaxSegments>;
  using Coder = BlocktopkCoder<E>;
  using Frames = BlocktopkFrames<Table, FrameList<kMaxFrames>>;
  struct Shared {
    typename Coder::Shared coder;
    BlocktopkStaged staged;
  };

  Table table;  // `parameter`: index in the call
  FrameList<kMaxFrames> list;
  BlocktopkTarget target;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  float factor;

  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    next.write(block);
    const DeviceWarp warp;
    const float b = words.residual_factor();
    const Frames frames{table, list, target.shape, factor, shared.staged, list.check(block)};
    frames.start(block.rank());
    Coder coder(target, shared.coder);
    for_each_unit(block, table, [&](const ReduceEntry& segment, const BlocktopkUnit& unit) {
      unit.for_each_unit(warp.thread_rank(), [&](unsigned first, const auto&) {
        const BlocktopkSlot::Rows zeros = {};
        shared.coder.slot.set_rows(first, zeros);
      });
      const bool valid =
          frames.add(segment.parameter, unit, unit.number + block.blocks(), shared.coder.slot);
      coder.add_residual(segment, unit, b);
      coder.write(segment, unit, valid);
    });
  }
};

}  // namespace tersor::kernels
