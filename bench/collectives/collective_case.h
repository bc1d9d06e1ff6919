// A measurement of `tersor-bench collectives`: a collective (with root 0 if the collective has a
// root), a codec and a count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bench/ranks/gradients.h"
#include "bench/ranks/iterations.h"

namespace tersor::bench {

/// The amount given or received by a rank: a shard, or a whole of one shard per rank.
enum class Amount : std::uint8_t { kShard, kWhole };

/// The arguments of a rank's call. A broadcast is in place, in the output.
struct CollectiveCall {
  Transport& transport;
  ConstValueSpan input;
  ValueSpan output;
  std::size_t columns;  ///< values per row
  const CollectiveOptions& options;
};

/// A collective: Tersor's name, MPI's name, the call and the check.
struct CollectiveKind {
  std::string_view name;
  std::string_view library;
  Amount gives, gets;  ///< for ranks that give or receive values
  void (*make)(const CollectiveCall& call);
  /// Returns the relative error of a rank's output; 0 for a rank without output.
  double (*error)(const RankGradients& gradients, int rank, ConstValueSpan output);
};

std::span<const CollectiveKind> collective_kinds();

/// The measured case. Count, dtype and ranks come with the gradients.
struct CollectiveCase {
  const CollectiveKind* kind = nullptr;
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t columns = 1;      ///< values per row; a shard is whole rows
  std::size_t chunk_count = 0;  ///< 0: the transport's default
  unsigned threads = 1;
  std::size_t iterations = 0;  ///< 0: about one second of calls
  /// True for MPI's collective instead of Tersor's; `codec` is then the collective's name
  bool by_library = false;
};

/// Times the collective after checking the result of a first call. A whole is a rank's gradient;
/// the number of ranks must divide the count. Throws the collective's exceptions, and Error for a
/// wrong result.
CallResult measure_collective(Fleet& fleet, const CollectiveCase& wanted,
                              const RankGradients& gradients);

}  // namespace tersor::bench
