// Times of calls that all ranks make in step.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>

#include "bench/fleet.h"

namespace tersor::bench {

/// What one rank calls again and again.
class Caller {
 public:
  virtual ~Caller() = default;

  /// Before each call, untimed.
  virtual void restore() = 0;
  virtual void call() = 0;
  /// Of the last call.
  virtual const CollectiveStatistics& statistics() const = 0;
};

/// Medians over iterations; times are those of the slowest rank, bytes those of the rank that sent
/// most.
struct CallTimes {
  Algorithm algorithm = Algorithm::kAuto;  ///< the one that was used
  double seconds = 0;
  std::uint64_t wire_bytes = 0;  ///< sent by one rank in one call
  double wire_seconds = 0;       ///< in which at least one message was under way
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// The seconds of one call, begun by all ranks together.
double time_call(Caller& caller, Rank& rank);

/// Of so many calls, after a few that are not timed; 0: as many as fill about a second.
CallTimes time_calls(Caller& caller, Rank& rank, std::size_t iterations);

}  // namespace tersor::bench
