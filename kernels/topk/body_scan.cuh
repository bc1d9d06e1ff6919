// The scan kernel: the single pass over a segment, which builds the list of candidates.
//
// Grid: as many blocks of 256 threads as are resident. Each block processes every n-th part of
// 4,096 values, 16 values per thread. The kernel reads 4 bytes per value of the gradient and 4 of
// the residual, and writes 4 bytes per value of the residual (f32) and 8 bytes per candidate. The
// last block chooses the path.
#pragma once

#include "kernels/topk/body_bins.cuh"
#include "kernels/topk/body_tensor.cuh"

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Appends the candidates of whole parts to the list in order of index, with one atomic per part.
/// If the list has no space for a part, none of its candidates are stored, but all are counted.
template <class Reader>
struct TopkList {
  static constexpr std::uint32_t kNoSpace = 0xffffffffu;
  static constexpr unsigned kRow = Reader::kRow;
  static constexpr unsigned kRows = TopkPartRows<Reader>::kRows;
  // A single block-wide sum adds several counts: the candidates in row 0 of all threads, in row 1,
  // and so on, 12 bits each. The highest 16 bits count non-finite values.
  static constexpr unsigned kFieldBits = 12, kPoisonShift = 48;
  static constexpr std::uint64_t kField = (1u << kFieldBits) - 1;
  static_assert(kTopkThreads * kRow <= kField && kRows * kFieldBits <= kPoisonShift);
  using Shared = SharedArray<std::uint32_t, 1>;

  const TopkDeviceMemory& memory;
  std::uint64_t* found;
  std::uint32_t capacity;

  /// Returns the number of non-finite values of the part, to all threads.
  template <class Block>
  TERSOR_DEVICE std::uint32_t append(const Block& block, Shared& shared, std::size_t part,
                                     const TopkPartRows<Reader>& rows, std::uint32_t threshold,
                                     std::uint32_t non_finite) const {
    std::uint64_t counts = static_cast<std::uint64_t>(non_finite) << kPoisonShift;
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      std::uint64_t in_row = 0;
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) in_row += topk_key(rows.value[row][i]) >= threshold;
      counts += in_row << (row * kFieldBits);
    }
    std::uint64_t total;
    const std::uint64_t before = block.exclusive_sum(counts, total);
    const auto poison = static_cast<std::uint32_t>(total >> kPoisonShift);
    std::uint32_t candidates = 0;
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) candidates += field(total, row);
    if (block.thread_rank() == 0) shared.set(0, reserve(part, candidates, poison));
    if (candidates == 0) return poison;
    block.sync();
    const std::uint32_t base = shared.get(0);
    if (base != kNoSpace) write(rows, threshold, base, before, total, block.thread_rank());
    return poison;
  }

 private:
  TERSOR_DEVICE static std::uint32_t field(std::uint64_t counts, unsigned row) {
    return static_cast<std::uint32_t>(counts >> (row * kFieldBits) & kField);
  }

  TERSOR_DEVICE std::uint32_t reserve(std::size_t part, std::uint32_t candidates,
                                      std::uint32_t poison) const {
    const std::uint64_t base = candidates == 0 ? 0 : atomic_add(found, std::uint64_t{candidates});
    const bool fits = base + candidates <= capacity;
    TopkPartRun* run = memory.runs + part;
    store(&run->base, fits ? static_cast<std::uint32_t>(base) : 0u);
    store(&run->count, static_cast<std::uint16_t>(fits ? candidates : 0));
    store(&run->restored, static_cast<std::uint16_t>(poison != 0));
    return fits ? static_cast<std::uint32_t>(base) : kNoSpace;
  }

  TERSOR_DEVICE void write(const TopkPartRows<Reader>& rows, std::uint32_t threshold,
                           std::uint32_t base, std::uint64_t before, std::uint64_t total,
                           unsigned thread) const {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      std::uint32_t position = base + field(before, row);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        const float p = rows.value[row][i];
        if (topk_key(p) < threshold) continue;
        const auto index = static_cast<std::uint32_t>(rows.first_of(0, row, thread) + i);
        store(reinterpret_cast<Words64*>(memory.candidates + position++),
              Words64{bits_of(p), index});
      }
      base += field(total, row);
    }
  }
};
static_assert(sizeof(TopkCandidate) == sizeof(Words64));

template <typename G, typename E>
struct TopkScanKernel : LaunchBounds<kTopkThreads, 3, true> {
  using Reader = TopkReader<G, E>;
  using Rows = TopkPartRows<Reader>;
  static constexpr unsigned kRow = Rows::kRow, kRows = Rows::kRows;

  struct Shared {
    SharedArray<std::uint32_t, kTopkWindowBins> window;
    typename TopkList<Reader>::Shared list;
    TopkBinShared position;
  };

  TopkTask<G, E> task;
  TopkForce force;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    TopkControl* control = task.memory.control;
    if (load(&control->path) == kTopkInactive) return;
    clear_bins<kTopkWindowBins>(block, shared.window);
    scan_parts(block, shared);
    add_bins<kTopkWindowBins>(block, shared.window, control->window);
    if (!block.is_last(&control->ticket[TopkControl::kScanned])) return;
    const std::uint64_t* window = control->window;
    const TopkBinPosition position =
        find_bin<kTopkWindowBins>(block, shared.position, task.plan.k, window);
    if (block.thread_rank() == 0) choose(position);
  }

 private:
  template <class Block>
  TERSOR_DEVICE void scan_parts(const Block& block, Shared& shared) const {
    TopkControl* control = task.memory.control;
    const Reader reader(task.tensor);
    const TopkList<Reader> list{task.memory, &control->found, task.plan.capacity};
    const std::uint32_t threshold = load(&control->threshold), low = load(&control->low);
    std::uint64_t non_finite = 0;
    for (std::size_t part = block.rank(); part < task.plan.parts; part += block.blocks()) {
      Rows rows;
      const std::uint32_t own = read_part(reader, part, block.thread_rank(), rows);
      count_window(shared, rows, low);
      const std::uint32_t all = list.append(block, shared.list, part, rows, threshold, own);
      non_finite += all;
      if (all != 0 && reader.writes_in_scan() && reader.is_in_place())
        restore(reader, part, block.thread_rank(), rows);
    }
    if (block.thread_rank() == 0 && non_finite != 0) atomic_add(&control->non_finite, non_finite);
  }

  /// Reads p and writes the residual as if nothing were sent. A non-finite p leaves the old
  /// residual. Returns the number of non-finite values.
  TERSOR_DEVICE std::uint32_t read_part(const Reader& reader, std::size_t part, unsigned thread,
                                        Rows& rows) const {
    std::uint32_t non_finite = 0;
    Rows::with_positions(reader, part, thread, [&](const auto& position_of) {
      float residual[kRows][kRow];
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row) {
        reader.load_gradient(position_of(row), rows.value[row]);
        reader.load_residual(position_of(row), residual[row]);
      }
      TERSOR_UNROLL
      for (unsigned row = 0; row < kRows; ++row)
        non_finite += combine(reader, position_of(row), rows.value[row], residual[row]);
    });
    return non_finite;
  }

  /// Replaces a row by p, and the row's residual by p.
  TERSOR_DEVICE std::uint32_t combine(const Reader& reader, RowPosition position,
                                      float (&row)[kRow], float (&residual)[kRow]) const {
    std::uint32_t non_finite = 0;
    reader.add_feedback(row, residual);
    TERSOR_UNROLL
    for (unsigned i = 0; i < kRow; ++i) {
      const bool is_poison = topk_key(row[i]) >= task.tensor.limit && i < position.left;
      non_finite += is_poison;
      if constexpr (Reader::kHasResidual) residual[i] = is_poison ? residual[i] : row[i];
    }
    if (reader.writes_in_scan()) reader.store_residual(position, residual);
    return non_finite;
  }

  TERSOR_DEVICE static void count_window(Shared& shared, const Rows& rows, std::uint32_t low) {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row) {
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) {
        const std::uint32_t key = topk_key(rows.value[row][i]);
        if (key < low) continue;
        const std::uint32_t bin = (key - low) >> kTopkWindowShift;
        shared.window.add(bin < kTopkWindowBins ? bin : kTopkWindowBins - 1, 1);
      }
    }
  }

  TERSOR_DEVICE static void restore(const Reader& reader, std::size_t part, unsigned thread,
                                    const Rows& rows) {
    TERSOR_UNROLL
    for (unsigned row = 0; row < kRows; ++row)
      reader.restore(reader.position(Rows::first_of(part, row, thread)), rows.value[row]);
  }

  /// Chooses the path. `position` is the window bin of the k-th key, if the window contains the
  /// k-th key.
  TERSOR_DEVICE void choose(const TopkBinPosition& position) const {
    TopkControl* control = task.memory.control;
    const std::uint32_t threshold = load(&control->threshold), low = load(&control->low);
    const std::uint64_t found = load_fresh(&control->found);
    // True if fewer than k values are nonzero, so all of them are sent.
    const bool sends_all = position.total < task.plan.k && low == kTopkMinKey;
    // True if the bin of the k-th key is known. The last bin has no upper end.
    const bool is_known = position.total >= task.plan.k && position.bin != kTopkWindowBins - 1;
    const std::uint32_t edge = sends_all ? kTopkMinKey : low + (position.bin << kTopkWindowShift);
    const std::uint64_t reached = sends_all ? position.total : position.above + position.inside;

    const bool hits =
        found <= task.plan.capacity && (found >= task.plan.k || threshold == kTopkMinKey);
    const bool gathers = (sends_all || is_known) && reached <= task.plan.capacity;
    TopkPath path = hits ? TopkPath::kHit : gathers ? TopkPath::kGather : TopkPath::kRadix;
    if (force == TopkForce::kRadix) path = TopkPath::kRadix;
    if (load_fresh(&control->non_finite) != 0) path = TopkPath::kPoison;
    store(&control->path, static_cast<std::uint32_t>(path));
    store(&control->listed, path == TopkPath::kHit ? found : reached);
    if (path == TopkPath::kGather) store(&control->threshold, edge);
    if (path != TopkPath::kRadix && sends_all) return send_all();
    const bool is_within = path != TopkPath::kRadix && is_known;
    store(&control->base, is_within ? edge : std::uint32_t{kTopkMinKey});
    store(&control->shift, is_within ? 0u : std::uint32_t{kTopkFirstShift});
    store(&control->rank, is_within ? task.plan.k - position.above : std::uint64_t{task.plan.k});
  }

  TERSOR_DEVICE void send_all() const {
    TopkControl* control = task.memory.control;
    store(&control->shift, kTopkDone);
    store(&control->key, kTopkMinKey);
    store(&control->ties, kTopkAllTies);
  }
};

}  // namespace tersor::kernels
