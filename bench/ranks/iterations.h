// Times of calls made by all ranks together. A turn is a single call on all ranks. Several kinds of
// calls alternate, and changes on the machine affect all kinds.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/ranks/fleet.h"

namespace tersor::bench {

/// The statistics and times of a call on a rank. Over ranks and turns: medians over turns of the
/// slowest rank's times and of the largest number of bytes.
struct IterationTimes : CollectiveStatistics {
  double part_seconds = 0;  ///< a separately reported part of `seconds`; otherwise 0
};

/// The meaning of `part_seconds` depends on the call. A reducer's step: the exposed time in `wait`.
/// A call on a device: the time until the call returned to the host.
struct CallResult : IterationTimes {
  std::string codec = {};  ///< the codec in use
  double relative_error = 0;
  std::string explanation = {};  ///< explanation of codec auto
  /// Only on a device. The number of values that differ from the CPU's result in at least one bit.
  /// Sums of the library below count values outside the rounding error instead. nullopt if the
  /// library's sums are only one part of the exchange; only the relative error is checked then.
  std::optional<std::size_t> wrong = {};
};

/// A call that a rank repeats.
class RankCall {
 public:
  virtual ~RankCall() = default;

  /// Called before each call, outside the timed section.
  virtual void restore() = 0;
  virtual void call() = 0;
  /// Makes a call and returns the times, by default from the host's clock.
  virtual IterationTimes time();
  /// If false, the `restore` of fast ranks takes cores from slower ranks, still in their calls.
  virtual bool waits_after_call() const { return true; }
  /// Statistics of the last call.
  virtual const CollectiveStatistics& statistics() const = 0;

 protected:
  /// The times of the last call.
  IterationTimes times(double seconds, double part_seconds = 0) const;
};

/// A turn, started by all ranks together.
IterationTimes time_iteration(RankCall& caller, Rank& rank);

/// Makes a few turns of each kind. Returns the number of turns to time: `iterations` or, for 0,
/// about one second per kind.
std::size_t warm_up(std::span<RankCall* const> callers, Rank& rank, std::size_t iterations);

/// Times this number of turns of each kind.
std::vector<IterationTimes> time_iterations(std::span<RankCall* const> callers, Rank& rank,
                                            std::size_t iterations);

/// Warms up and times a single kind.
IterationTimes time_iterations(RankCall& caller, Rank& rank, std::size_t iterations);

}  // namespace tersor::bench
