// One measurement of `tersor-bench allreduce`: a codec and a count, called directly or through the
// GradientReducer.
#pragma once

#include <tersor/auto.h>
#include <tersor/collectives.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/ranks.h"
#include "bench/turns.h"

namespace tersor::bench {

/// What is measured; count, dtype and ranks come with the gradients.
struct AllreduceCase {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t chunk_count = 0;  ///< 0: as the transport has it
  unsigned threads = 1;         ///< of each rank
  std::size_t iterations = 0;   ///< 0: as many as fill about a second
  Checksum checksum = Checksum::kOn;
  bool by_library = false;      ///< the library's sum instead of ours; the codec is its name
  AutoOptions automatic = {};   ///< of codec auto
  std::vector<int> dims = {};   ///< of two-shot
  std::vector<int> hosts = {};  ///< of each rank, for hierarchical; empty: as the transport says
  Collective collective = Collective::kAllreduce;
  Elastic elastic = Elastic::kOff;  ///< of the reducer
};

/// A backward pass that is a sleep, during which one parameter after the other is ready.
struct BackwardPass {
  std::size_t parameters = 1;
  double seconds = 0;
};

/// `part_seconds` are those of a reducer's step in `wait`, exposed; of a call on a device, those
/// until it returned to the host.
struct AllreduceResult : TurnTimes {
  std::string codec = {};  ///< the one that was used
  double relative_error = 0;
  std::string explanation = {};  ///< codec auto's
  /// On a device: values that differ from the CPU's in a bit; of sums that the library below made,
  /// those that rounding does not explain. nullopt where its sums are but a part of the way: then
  /// only the relative error was held against a limit.
  std::optional<std::size_t> wrong = {};
};

/// Times `allreduce`, or `reduce_scatter`. The result of a first call is checked before the clock
/// runs. Throws what the collective throws, and Error where a result is wrong.
AllreduceResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                                  const RankGradients& gradients);

/// Times steps of a GradientReducer, `pass.parameters` equal parameters in each.
AllreduceResult measure_reducer(Fleet& fleet, const AllreduceCase& wanted, const BackwardPass& pass,
                                const RankGradients& gradients);

}  // namespace tersor::bench
