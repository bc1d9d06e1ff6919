// Sums and gathers of little in a few steps, as lists of who sends what to whom, before anything
// moves. Each rank works on *items* that lie one behind the other: the values of a sum, or the
// records of a gather. tests/schedules walks the lists of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor::host {

/// Of items: [first, first + count).
struct ItemRange {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// One message to a peer and one from it, or only one of them.
struct HostStep {
  static constexpr int kNobody = -1;

  int to = kNobody;
  int from = kNobody;
  ItemRange sent = {};
  ItemRange taken = {};
  bool combines = false;  ///< what comes is combined with what is there; else it replaces that
};

using HostSteps = std::vector<HostStep>;

// Sums. With 2^k the largest power of two of at most `ranks`: rank r from 2^k on gives its values
// to rank r - 2^k first and gets the result from it in the end. Among the others the partner of the
// first step is at a distance of 1, then of 2, 4, …: x0 + x1, (x0 + x1) + (x2 + x3), … for every
// value, so both ways come to the same bits. Neighbours meet in the first step, as they do in a
// ring and where all send to all: ranks that go different ways find out at once. (Sums of ranks
// that are no power of two go other ways; of them the cost model asks what others would take.)

/// Everything to the partner in each of k steps: few messages, k times the bytes.
HostSteps recursive_doubling(int rank, int ranks, std::size_t count);
/// Half of what is left to the partner in each of k steps, who takes care of that; and the same way
/// back: twice as many messages, 2 (1 - 2^-k) of the bytes (Thakur, Rabenseifner, Gropp 2005).
HostSteps halving_doubling(int rank, int ranks, std::size_t count);

/// All ranks' records, of which the own one is the first: those of ranks r, r + 1, … (cyclic). In
/// step k the first min(2^k, ranks - 2^k) of them go to rank r - 2^k, as many come from rank
/// r + 2^k (Bruck et al. 1997).
HostSteps gather_in_rounds(int rank, int ranks);

/// How values come together. Doubling and halving end with the same bits, direct and ring with
/// those of the owners' order (ring.h).
enum class SumWay : std::uint8_t { kDirect, kDoubling, kHalving, kRing };

/// Up to how many bytes of all parts sums go another way than the ring, where their order is left
/// open. Doubling has fewer messages, halving fewer bytes: which of them is quicker turns where a
/// message costs as much as its bytes. Where the ranks are no power of two, some would send all
/// they have twice more: few ranks send to everybody instead. Measured on 2 to 8 processes: the
/// loopback, and hosts at 1 Gbit/s.
struct SumTuning {
  static constexpr std::size_t kMostDoubledBytes = 8 * 1024;
  static constexpr std::size_t kMostDoubledOnHost = 32 * 1024;  ///< where all ranks share one
  static constexpr std::size_t kMostHalvedBytes = 64 * 1024;
  static constexpr std::size_t kMostDirectBytes = 8 * 1024;  ///< also where the order is fixed
  static constexpr std::size_t kMostDirectOfFewRanks = 16 * 1024;  ///< of less than 8
};

/// The same on all ranks of a sum.
SumWay sum_way(int ranks, bool one_host, std::size_t bytes);
/// Those of recursive_doubling, or of halving_doubling.
HostSteps steps_of(SumWay way, int rank, int ranks, std::size_t count);

}  // namespace tersor::host
