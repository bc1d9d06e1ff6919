// The emit kernel: writes values, indices and remainders of the sent values, all other sections of
// a payload, and the frame's header. A segment with non-finite values becomes NaNs, and an inactive
// segment becomes zeros. Both keep the old residual.
//
// Grid: blocks of 256 threads. Each block counts and then sends a contiguous range of parts, one
// warp per part. The kernel reads 8 bytes per candidate twice. Per sent value, the kernel writes 6
// bytes (values in f32) and 4 bytes to the residual. If the kernel reads all of p, each read takes
// 4 bytes per value (8 if the residual does not hold p). If the scan did not write the residual,
// the kernel writes all of the residual.
#pragma once

#include "kernels/topk/body_count.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

template <typename G, typename E>
struct TopkEmitKernel : LaunchBounds<kTopkThreads, 4, true> {
  using Reader = TopkReader<G, E>;
  using Shared = SharedArray<std::uint32_t, 1>;

  TopkTask<G, E> task;
  TopkTarget target;
  std::size_t block_parts;  // parts per block
  FrameSeal seal;
  NextWords next;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    seal.write(block);
    next.write(block);
    const Reader reader(task.tensor);
    TopkControl* control = task.memory.control;
    const std::uint32_t path = load(&control->path);
    if (path == kTopkInactive) return write_inactive(block, reader);
    write_padding(block);
    if (path == std::uint32_t(TopkPath::kPoison)) return write_poison(block, reader);
    if (block.thread_rank() == 0)
      shared.set(0, atomic_add(&control->ticket[TopkControl::kSent], 1u));
    block.sync();
    const unsigned rank = shared.get(0);
    const std::size_t begin = rank * block_parts;
    const std::size_t end =
        begin + block_parts < task.plan.parts ? begin + block_parts : task.plan.parts;
    const bool is_radix = path == std::uint32_t(TopkPath::kRadix);
    const TopkCutoff cutoff = TopkCutoff::load_from(control);
    const TopkCounter<Reader> counter{task.memory, reader, cutoff, is_radix};
    const TopkCounts counts = counter.count_block(block, begin, end);
    const TopkCounts before = counter.counts_before(block, rank, counts);
    for (std::size_t part = begin + block.warp_rank(); part < end; part += block.warps())
      send_part(block.warp(), reader, part, cutoff, before, is_radix || reader.writes_after_scan());
    if (rank == block.blocks() - 1) write_unused(block, cutoff, before + counts);
  }

 private:
  /// Numbers of keys before a value within its part.
  struct PrecedingKeys {
    unsigned larger, equal;
  };

  /// The selection within a part: the payload position of the first sent value, and the remaining
  /// ties.
  struct PartCutoff {
    std::uint32_t position;
    TopkCutoff cutoff;
  };

  // Sending one part.

  template <class Warp>
  TERSOR_DEVICE void send_part(const Warp& warp, const Reader& reader, std::size_t part,
                               TopkCutoff cutoff, TopkCounts counts, bool reads_all) const {
    const TopkPartRun* run = task.memory.runs + part;
    counts = counts + TopkCounts{load(&run->larger), load(&run->equal)};
    const auto position = static_cast<std::uint32_t>(cutoff.sent(counts.larger, counts.equal));
    cutoff.ties -=
        counts.equal < cutoff.ties ? static_cast<std::uint32_t>(counts.equal) : cutoff.ties;
    PrecedingKeys before{0, 0};
    if (warp.thread_rank() == 0) write_first(part, position);
    if (reads_all)
      for_each_warp_row(warp, reader, part, [&](const auto& row, unsigned index) {
        send_row(warp, reader, row, part * kTopkPart + index, {position, cutoff}, before);
      });
    else
      for_each_warp_candidate(
          warp, task.memory, {load(&run->base), load(&run->count), 0, 0, 0},
          [&](const auto& row, unsigned index) {
            send_row(warp, reader, row, part * kTopkPart + index, {position, cutoff}, before);
          });
  }

  TERSOR_DEVICE void write_first(std::size_t part, std::uint32_t position) const {
    constexpr std::size_t kParts = kTopkTile / kTopkPart;
    if (part % kParts == 0) store(target.first() + part / kParts, position);
  }

  /// Sends the selected values of a row, which starts at value `first`. A row of one value is a
  /// candidate. A longer row holds consecutive values, and the residual of the row is written here
  /// if the scan did not write the residual.
  template <unsigned kRow, class Warp>
  TERSOR_DEVICE void send_row(const Warp& warp, const Reader& reader, const float (&row)[kRow],
                              std::size_t first, PartCutoff part, PrecedingKeys& before) const {
    const bool writes_row = kRow != 1 && reader.writes_after_scan();
    const bool writes_one = reader.writes_in_scan() && target.layout.values != TopkValues::kInt8;
    float left[kRow];
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) left[i] = row[i];
    bool any = false;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) any |= topk_key(row[i]) >= part.cutoff.key;
    if (warp.ballot(any) != 0) {
      PrecedingKeys own = count_row(warp, row, part.cutoff, before);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        const bool larger = part.cutoff.larger(row[i]), equal = part.cutoff.equal(row[i]);
        if (larger || (equal && own.equal < part.cutoff.ties)) {
          const auto sent = static_cast<unsigned>(part.cutoff.sent(own.larger, own.equal));
          left[i] = send(part.position + sent, first + i, row[i]);
          if (writes_one) reader.store_residual_at(first + i, left[i]);
        }
        own.larger += larger;
        own.equal += equal;
      }
    }
    if constexpr (kRow == Reader::kRow)
      if (writes_row) reader.store_residual(reader.position(first), left);
  }

  /// Returns the counts before this thread's row, and advances `before` past the warp's rows.
  template <unsigned kRow, class Warp>
  TERSOR_DEVICE static PrecedingKeys count_row(const Warp& warp, const float (&row)[kRow],
                                               TopkCutoff cutoff, PrecedingKeys& before) {
    const std::uint32_t below = (1u << warp.thread_rank()) - 1;
    PrecedingKeys own = before;
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      const std::uint32_t larger = warp.ballot(cutoff.larger(row[i]));
      const std::uint32_t equal = warp.ballot(cutoff.equal(row[i]));
      own.larger += count_bits(larger & below);
      own.equal += count_bits(equal & below);
      before.larger += count_bits(larger);
      before.equal += count_bits(equal);
    }
    return own;
  }

  /// Writes a sent value and returns the remainder. The remainder of an int8 value is all of p
  /// until the block's scale is known.
  TERSOR_DEVICE float send(std::uint32_t position, std::size_t index, float p) const {
    store(target.index_in_tile() + position, static_cast<std::uint16_t>(index % kTopkTile));
    write_value(position, p);
    if (target.layout.values == TopkValues::kF32) return 0;
    return target.layout.values == TopkValues::kBf16 ? topk_bf16_remainder(p) : p;
  }

  TERSOR_DEVICE void write_value(std::uint64_t position, float p) const {
    switch (target.layout.values) {
      case TopkValues::kF32:
        return store(target.template values<float>() + position, p);
      case TopkValues::kBf16:
        return store(target.template values<std::uint16_t>() + position, f32_to_bf16(p));
      case TopkValues::kInt8:
        return store(task.memory.chosen + position, p);
    }
  }

  // Other sections of the payload.

  /// Calls visit(i) for [begin, end), in parallel over the grid.
  template <class Block, class Visit>
  TERSOR_DEVICE static void for_each(const Block& block, std::size_t begin, std::size_t end,
                                     const Visit& visit) {
    const std::size_t stride = std::size_t{block.blocks()} * block.threads();
    for (std::size_t i = begin + std::size_t{block.rank()} * block.threads() + block.thread_rank();
         i < end; i += stride)
      visit(i);
  }

  template <class Block>
  TERSOR_DEVICE void write_zeros(const Block& block, std::size_t begin, std::size_t end) const {
    for_each(block, begin, end, [&](std::size_t i) { store(target.payload + i, std::byte{0}); });
  }

  template <class Block>
  TERSOR_DEVICE void write_padding(const Block& block) const {
    const TopkLayout& layout = target.layout;
    write_zeros(block, layout.first_bytes(), layout.index_offset());
    write_zeros(block, layout.index_offset() + layout.index_bytes(), layout.scales_offset());
    write_zeros(block, layout.scales_offset() + layout.scales_bytes(), layout.values_offset());
    write_zeros(block, layout.values_offset() + layout.values_bytes(), layout.bytes());
  }

  /// Writes the number of sent values and the places without a value, in one block. There are few
  /// or no places, unless almost all values are zero.
  template <class Block>
  TERSOR_DEVICE void write_unused(const Block& block, TopkCutoff cutoff, TopkCounts counts) const {
    const auto selected = static_cast<std::uint32_t>(cutoff.sent(counts.larger, counts.equal));
    if (block.thread_rank() == 0) {
      store(&task.memory.control->selected, selected);
      store(target.first() + target.layout.tiles(), selected);
    }
    for (std::size_t i = selected + block.thread_rank(); i < task.plan.k; i += block.threads()) {
      store(target.index_in_tile() + i, std::uint16_t{0});
      write_value(i, 0.0f);
    }
  }

  // Segments without sent values.

  template <class Block>
  TERSOR_DEVICE void write_inactive(const Block& block, const Reader& reader) const {
    write_zeros(block, 0, target.layout.bytes());
    if (Reader::kHasResidual && !reader.is_in_place()) copy_residual(block, reader);
  }

  template <class Block>
  TERSOR_DEVICE void copy_residual(const Block& block, const Reader& reader) const {
    for_each_row<Reader>(block, task.tensor.count,
                         [&](std::size_t first) { reader.copy_residual(reader.position(first)); });
  }

  /// Writes k NaNs at the indices 0 … k - 1, and restores the old residual.
  template <class Block>
  TERSOR_DEVICE void write_poison(const Block& block, const Reader& reader) const {
    const std::size_t k = task.plan.k;
    for_each(block, 0, target.layout.tiles() + 1, [&](std::size_t tile) {
      const std::size_t before = tile * kTopkTile;
      store(target.first() + tile, static_cast<std::uint32_t>(before < k ? before : k));
    });
    for_each(block, 0, k, [&](std::size_t i) {
      store(target.index_in_tile() + i, static_cast<std::uint16_t>(i % kTopkTile));
      write_value(i, float_of(kNanBits));
    });
    if (!reader.writes_in_scan()) return;
    if (!reader.is_in_place()) return copy_residual(block, reader);
    for_each_row<Reader>(block, task.tensor.count, [&](std::size_t first) {
      if (load_input(&task.memory.runs[first / kTopkPart].restored) != 0) return;
      float sum[Reader::kRow];
      reader.reload_sum(reader.position(first), sum);
      reader.restore(reader.position(first), sum);
    });
  }
};

}  // namespace tersor::kernels
