// The kernels of blocktopk. A block of 256 threads processes a block of 4,096 values at a time, 16
// values per thread. Values stay in registers between the single read and the single write, and the
// lists are built in shared memory.
//
// Grid: as many blocks as are resident, each striding over the blocks of values. Memory traffic in
// bytes per value, for f32, 1 % and signs:
//   Encode: 4 read and 0.015 written. Error feedback adds 4 read and 4 written.
//   Decode: 0.015 read per frame and 4 written.
//   Reduce: 0.015 read per frame and 0.015 written. The owner's residual adds 4 read and 4 written.
#pragma once

#include "kernels/blocktopk/coder.cuh"
#include "kernels/device/queue.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// The block whose payloads are added, and the segment index for fault reports.
struct BlocktopkAdded {
  const BlocktopkUnit& unit;
  std::uint64_t offset;   // of the segment's sections
  std::uint32_t segment;  // index of the segment in the call
  float factor;
};

/// Adds the payloads of a block in order, in shared memory.
struct BlocktopkSum {
  using Shared = SharedArray<float, kBlocktopkValues>;

  /// Rows are transposed, so neighbouring threads access neighbouring words.
  TERSOR_DEVICE static unsigned slot(unsigned value_index) {
    return value_index % kBlocktopkRow * (kBlocktopkValues / kBlocktopkRow) +
           value_index / kBlocktopkRow;
  }

  template <class Block>
  TERSOR_DEVICE static void begin(const Block& block, Shared& sum, const BlocktopkRows& rows) {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i)
        sum.set(slot(blocktopk_position(block.thread_rank(), row, i)), rows[row][i]);
    }
  }

  /// Adds all payloads. Contains barriers. Reports invalid indices of a payload and returns false.
  template <class Block, class List>
  TERSOR_DEVICE static bool add(const Block& block, Shared& sum, const List& list,
                                const BlocktopkShape& shape, const BlocktopkAdded& added) {
    const BlocktopkOffsets offsets(shape, added.unit.blocks, added.unit.index);
    TERSOR_KEEP_LOOP
    for (unsigned index = 0; index < list.frames; ++index) {
      const auto* sections =
          reinterpret_cast<const std::uint32_t*>(list.payload(index) + added.offset);
      const BlocktopkRead read(block, shape, sections, offsets, added.unit.count);
      if (block.any(!read.is_sound())) {
        if (block.thread_rank() == 0) list.report(index, FrameFault::kIndices, added.segment);
        return false;
      }
      visit_kind(shape.value_bits, [&]<BlocktopkValues kValues>(BlocktopkKind<kValues>) {
        read.template for_each<kValues>([&](unsigned value_index, float value) {
          const float product = value * added.factor;
          sum.set(slot(value_index), sum.get(slot(value_index)) + product);
        });
      });
    }
    block.sync();
    return true;
  }

  template <class Block>
  TERSOR_DEVICE static void end(const Block& block, const Shared& sum, BlocktopkRows& rows) {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i)
        rows[row][i] = sum.get(slot(blocktopk_position(block.thread_rank(), row, i)));
    }
  }
};

/// Blocks per multiprocessor, by architecture: the maximum without register spills.
struct BlocktopkResident {
  unsigned from;
  unsigned coding;
};
constexpr BlocktopkResident kBlocktopkTuning[] = {{.from = 0, .coding = 2},
                                                  {.from = 1000, .coding = 1}};

struct BlocktopkKernel {
  static constexpr unsigned kThreads = kBlocktopkThreads;
  static constexpr unsigned kResident = tuning_of(kBlocktopkTuning).coding;

  /// Calls visit(segment, unit) for each block of values processed by this block of threads.
  template <class Block, class Table, class Visit>
  TERSOR_DEVICE static void for_each_unit(const Block& block, const Table& table,
                                          const Visit& visit) {
    TERSOR_KEEP_LOOP
    for (std::size_t unit = block.rank(); unit < table.units; unit += block.blocks()) {
      const auto number = static_cast<std::uint32_t>(unit);
      visit(table.find(number), number);
    }
  }
};

template <typename G, typename E, unsigned kMost>
struct BlocktopkEncodeKernel : BlocktopkKernel {
  static constexpr bool kScans = true;
  using Shared = typename BlocktopkCoder<E>::Shared;

  SegmentTable<EncodeEntry, kMost> table;
  BlocktopkTarget target;
  CallWords words;
  NextWords next;
  FrameSeal seal;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    next.write(block);
    for_each_unit(block, table, [&](const EncodeEntry& segment, std::uint32_t unit) {
      const BlocktopkCoder<E> coder(target, segment, unit, shared);
      if (is_inactive(segment)) return coder.keep(block);
      BlocktopkRows p;
      coder.unit().template load_from<Load::kInput>(block.thread_rank(),
                                                    static_cast<const G*>(segment.gradient), p);
      coder.feed(block.thread_rank(), words.gradient_factor(), words.residual_factor(), p);
      coder.write(block, p, true);
    });
  }
};

template <typename T, unsigned kMostSegments, unsigned kMostFrames>
struct BlocktopkDecodeKernel : BlocktopkKernel {
  static constexpr unsigned kResident = 3;
  static constexpr bool kScans = false;
  struct Shared {
    BlocktopkSum::Shared sum;
  };

  SegmentTable<DecodeEntry, kMostSegments> table;
  FrameList<kMostFrames> list;
  BlocktopkShape shape;
  float factor;
  DecodeMode mode;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const bool sound = list.check(block);
    for_each_unit(block, table, [&](const DecodeEntry& segment, std::uint32_t unit) {
      decode_unit(block, shared, segment, BlocktopkUnit(segment, unit), sound);
    });
  }

 private:
  template <class Block>
  TERSOR_DEVICE void decode_unit(const Block& block, Shared& shared, const DecodeEntry& segment,
                                 const BlocktopkUnit& unit, bool sound) const {
    T* output = static_cast<T*>(segment.output);
    BlocktopkRows rows = {};
    if (mode == DecodeMode::kAdd) unit.load_from<Load::kAny>(block.thread_rank(), output, rows);
    BlocktopkSum::begin(block, shared.sum, rows);
    block.sync();
    sound = sound && BlocktopkSum::add(block, shared.sum, list, shape,
                                       {unit, segment.offset, segment.reserved, factor});
    BlocktopkSum::end(block, shared.sum, rows);
    if (!sound) fill_nan(rows);
    unit.store_to(block.thread_rank(), rows, output);
    block.sync();
  }

  TERSOR_DEVICE static void fill_nan(BlocktopkRows& rows) {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kBlocktopkRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kBlocktopkRow; ++i) rows[row][i] = float_of(kNanBits);
    }
  }
};

template <typename E, unsigned kMostSegments, unsigned kMostFrames>
struct BlocktopkReduceKernel : BlocktopkKernel {
  static constexpr bool kScans = true;
  struct Shared {
    BlocktopkSum::Shared sum;
    typename BlocktopkCoder<E>::Shared coder;
  };

  SegmentTable<ReduceEntry, kMostSegments> table;  // `parameter`: index in the call
  FrameList<kMostFrames> list;
  BlocktopkTarget target;
  CallWords words;
  NextWords next;
  FrameSeal seal;
  float factor;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    next.write(block);
    const bool frames_sound = list.check(block);
    for_each_unit(block, table, [&](const ReduceEntry& segment, std::uint32_t unit) {
      const BlocktopkCoder<E> coder(target, segment, unit, shared.coder);
      BlocktopkRows p = {};
      BlocktopkSum::begin(block, shared.sum, p);
      block.sync();
      const bool sound = frames_sound && BlocktopkSum::add(block, shared.sum, list, target.shape,
                                                           {coder.unit(), segment.offset,
                                                            segment.parameter, factor});
      BlocktopkSum::end(block, shared.sum, p);
      coder.feed(block.thread_rank(), 1.0f, words.residual_factor(), p);
      coder.write(block, p, sound);
    });
  }
};

}  // namespace tersor::kernels
