// Times of calls made by all ranks together. A turn is a single call on all ranks. Several kinds of
// calls alternate, and changes on the machine affect all kinds.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/fleet.h"
#include "bench/timing.h"

namespace tersor::bench {

/// Seconds of a rank in a turn.
struct IterationTime {
  double whole = 0;
  double part = 0;  ///< a separately reported part of `whole`; otherwise 0
};

/// A call that a rank repeats.
class RankCall {
 public:
  virtual ~RankCall() = default;

  /// Called before each call, outside the timed section.
  virtual void restore() = 0;
  virtual void call() = 0;
  /// Makes a call and returns the time, by default from the host's clock.
  virtual IterationTime time() {
    const Stopwatch watch;
    call();
    return {watch.seconds()};
  }
  /// True if ranks also wait for each other after a call. Otherwise the `restore` of fast ranks
  /// takes cores from slower ranks, still in their calls.
  virtual bool ends_together() const { return true; }
  /// Statistics of the last call.
  virtual const CollectiveStatistics& statistics() const = 0;
};

/// Medians over turns. Times are the slowest rank's times, bytes the largest number of bytes.
struct IterationTimes {
  Algorithm algorithm = Algorithm::kAuto;  ///< the algorithm in use
  double seconds = 0;
  double part_seconds = 0;
  std::uint64_t wire_bytes = 0;  ///< bytes sent per rank and call
  double wire_seconds = 0;       ///< time with at least one message under way
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// A turn, started by all ranks together.
IterationTime time_iteration(RankCall& caller, Rank& rank);

/// Makes a few turns of each kind. Returns the number of turns to time: `iterations` or, for 0,
/// about one second per kind.
std::size_t warm_up(std::span<RankCall* const> callers, Rank& rank, std::size_t iterations);

/// Times this number of turns of each kind.
std::vector<IterationTimes> time_iterations(std::span<RankCall* const> callers, Rank& rank,
                                            std::size_t iterations);

/// Warms up and times a single kind.
IterationTimes time_iterations(RankCall& caller, Rank& rank, std::size_t iterations);

}  // namespace tersor::bench
