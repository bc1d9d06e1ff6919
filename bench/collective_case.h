// One measurement of `tersor-bench collectives`: a collective, from or to rank 0 where it has a
// root, a codec, a count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bench/ranks.h"
#include "bench/turns.h"

namespace tersor::bench {

/// How much of a whole, which is as many shards as ranks, a rank gives or gets.
enum class Amount : std::uint8_t { kShard, kWhole };

/// One rank's call of a collective; a broadcast is in place, in the output.
struct CollectiveCall {
  Transport& transport;
  ConstValueSpan input;
  ValueSpan output;
  std::size_t columns;  ///< of a row
  const CollectiveOptions& options;
};

/// A collective: what it is called here and by MPI, what it does, and what it should have done.
struct CollectiveKind {
  std::string_view name;
  std::string_view library;
  Amount gives, gets;  ///< of the ranks that give or get anything
  void (*make)(const CollectiveCall& call);
  /// Relative, of what a rank got; 0 where it gets nothing.
  double (*error)(const RankGradients& gradients, int rank, ConstValueSpan output);
};

std::span<const CollectiveKind> collective_kinds();

/// What is measured; count, dtype and ranks come with the gradients.
struct CollectiveCase {
  const CollectiveKind* kind = nullptr;
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t columns = 1;      ///< of a row; a shard is whole rows
  std::size_t chunk_count = 0;  ///< 0: as the transport has it
  unsigned threads = 1;
  std::size_t iterations = 0;  ///< 0: as many as fill about a second
  bool by_library = false;     ///< MPI's instead of ours; the codec is its name
};

struct CollectiveResult {
  TurnTimes times = {};
  double relative_error = 0;
};

/// Times the collective; the result of a first call is checked before the clock runs. A whole is a
/// rank's gradient, whose count is a multiple of the ranks.
/// Throws what the collective throws, and Error where a result is wrong.
CollectiveResult measure_collective(Fleet& fleet, const CollectiveCase& wanted,
                                    const RankGradients& gradients);

}  // namespace tersor::bench
