// A measurement of `tersor-bench allreduce`: a codec and a count, called directly or through the
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

#include "bench/iterations.h"
#include "bench/ranks.h"

namespace tersor::bench {

/// The measured case. Count, dtype and ranks come with the gradients.
struct AllreduceCase {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t chunk_count = 0;  ///< 0: the transport's default
  unsigned threads = 1;         ///< per rank
  std::size_t iterations = 0;   ///< 0: about one second of calls
  Checksum checksum = Checksum::kOn;
  /// True for the library's own sum instead of Tersor's; `codec` is then the sum's name
  bool by_library = false;
  AutoOptions automatic = {};  ///< for codec auto
  std::vector<int> dims = {};  ///< grid of two-shot
  /// host of each rank, for hierarchical; empty: the transport's hosts
  std::vector<int> hosts = {};
  Collective collective = Collective::kAllreduce;
  Elastic elastic = Elastic::kOff;  ///< for the reducer
};

/// A simulated backward pass: a sleep in which parameters become ready one after the other.
struct BackwardPass {
  std::size_t parameters = 1;
  double seconds = 0;
};

/// The meaning of `part_seconds` depends on the call. A reducer's step: the exposed time in `wait`.
/// A call on a device: the time until the call returned to the host.
struct AllreduceResult : IterationTimes {
  std::string codec = {};  ///< the codec in use
  double relative_error = 0;
  std::string explanation = {};  ///< explanation of codec auto
  /// Only on a device. The number of values that differ from the CPU's result in at least one bit.
  /// Sums of the library below count values outside the rounding error instead. nullopt if the
  /// library's sums are only one part of the exchange; only the relative error is checked then.
  std::optional<std::size_t> wrong = {};
};

/// Times `allreduce` or `reduce_scatter` after checking the result of a first call. Throws the
/// collective's exceptions, and Error for a wrong result.
AllreduceResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                                  const RankGradients& gradients);

/// Times steps of a GradientReducer with `pass.parameters` equal parameters.
AllreduceResult measure_reducer(Fleet& fleet, const AllreduceCase& wanted, const BackwardPass& pass,
                                const RankGradients& gradients);

}  // namespace tersor::bench
