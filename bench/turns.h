// Times of calls that all ranks make in step. A turn is one such call; several kinds take turns, so
// that what changes on the machine meanwhile meets all of them.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/fleet.h"
#include "bench/timing.h"

namespace tersor::bench {

/// Seconds of one rank in one turn.
struct TurnTime {
  double whole = 0;
  double part = 0;  ///< of these, what is told apart; else 0
};

/// What one rank calls again and again.
class RankCall {
 public:
  virtual ~RankCall() = default;

  /// Before each call, untimed.
  virtual void restore() = 0;
  virtual void call() = 0;
  /// Calls, and looks at the clock: the host's, unless it has another.
  virtual TurnTime time() {
    const Stopwatch watch;
    call();
    return {watch.seconds()};
  }
  /// Whether ranks wait for each other after a call, too: else what one restores takes cores from
  /// others that still call.
  virtual bool ends_together() const { return true; }
  /// Of the last call.
  virtual const CollectiveStatistics& statistics() const = 0;
};

/// Medians over turns; times are those of the slowest rank, bytes those of the rank that sent
/// most.
struct TurnTimes {
  Algorithm algorithm = Algorithm::kAuto;  ///< the one that was used
  double seconds = 0;
  double part_seconds = 0;
  std::uint64_t wire_bytes = 0;  ///< sent by one rank in one call
  double wire_seconds = 0;       ///< in which at least one message was under way
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// One turn, begun by all ranks together.
TurnTime time_turn(RankCall& caller, Rank& rank);

/// A few turns of each. Returns how many are to be timed: `iterations`, or for 0 as many as fill
/// about a second for each kind.
std::size_t warm_up(std::span<RankCall* const> callers, Rank& rank, std::size_t iterations);

/// Of so many turns of each.
std::vector<TurnTimes> time_turns(std::span<RankCall* const> callers, Rank& rank,
                                  std::size_t iterations);

/// Both for one kind.
TurnTimes time_turns(RankCall& caller, Rank& rank, std::size_t iterations);

}  // namespace tersor::bench
