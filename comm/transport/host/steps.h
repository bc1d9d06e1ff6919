// Sums and gathers of short inputs in a few steps, as precomputed lists of messages. Each rank
// works on contiguous *items*: the values of a sum or the records of a gather. tests/schedules
// checks the lists of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor::host {

/// The items [first, first + count).
struct ItemRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// A message to a peer, a message from a peer, or both.
struct HostStep {
  static constexpr int kNoRank = -1;

  int to = kNoRank;
  int from = kNoRank;
  ItemRange sent = {};
  ItemRange received = {};
  /// True if received items are combined with local items; otherwise received items replace local
  /// items.
  bool combines = false;
};

using HostSteps = std::vector<HostStep>;

// Sums. Let 2^k be the largest power of two up to `ranks`. Each rank r >= 2^k first sends its
// values to rank r - 2^k and receives the result at the end. Among the first 2^k ranks, the
// partner's distance is 1, then 2, 4, …: x0 + x1, (x0 + x1) + (x2 + x3), … for each value. Both
// algorithms therefore return the same bits. Neighbours communicate in the first step, as in the
// ring and the direct algorithm. Ranks with different algorithms therefore detect the mismatch at
// once. (Sums over other numbers of ranks use other algorithms, but the cost model evaluates these
// lists for all numbers.)

/// Exchanges all values with the partner in each of k steps: few messages, k times the bytes.
HostSteps recursive_doubling(int rank, int ranks, std::size_t count);
/// Reduce-scatter, then all-gather. Each of k steps sends half of the remaining values to the
/// partner; k further steps return the results in reverse order. Twice as many messages, 2 (1 -
/// 2^-k) of the bytes. Source: Thakur, Rabenseifner, Gropp 2005.
HostSteps halving_doubling(int rank, int ranks, std::size_t count);

/// The records of ranks r, r + 1, … (cyclic) in this order; the first is the own record. Step k
/// sends the first min(2^k, ranks - 2^k) records to rank r - 2^k and receives as many from rank r +
/// 2^k. Source: Bruck et al. 1997.
HostSteps gather_in_rounds(int rank, int ranks);

/// The algorithm of a sum. Doubling and halving return the same bits. Direct and ring return the
/// bits of the owners' order (ring.h).
enum class SumAlgorithm : std::uint8_t { kDirect, kDoubling, kHalving, kRing };

/// Size limits, in bytes of all parts, below which sums with a free order avoid the ring. Doubling
/// has fewer messages, halving fewer bytes. At the crossover, a message costs as much as the
/// message's bytes. If the number of ranks is no power of two, some ranks would send everything
/// twice more: few ranks use the direct algorithm instead. Measured with 2 to 8 processes, over
/// loopback and between hosts at 1 Gbit/s.
struct SumTuning {
  static constexpr std::size_t kMaxDoublingBytes = 8 * 1024;
  static constexpr std::size_t kMaxDoublingOnHost = 32 * 1024;  ///< if all ranks share one host
  static constexpr std::size_t kMaxHalvingBytes = 64 * 1024;
  static constexpr std::size_t kMaxDirectBytes = 8 * 1024;      ///< also used if the order is fixed
  static constexpr std::size_t kMaxDirectFewRanks = 16 * 1024;  ///< fewer than 8 ranks
};

/// Returns the same algorithm on all ranks of a sum.
SumAlgorithm sum_algorithm(int ranks, bool one_host, std::size_t bytes);
/// Returns the steps of recursive_doubling or halving_doubling.
HostSteps steps_of(SumAlgorithm algorithm, int rank, int ranks, std::size_t count);

}  // namespace tersor::host
