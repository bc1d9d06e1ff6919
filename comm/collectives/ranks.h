// The ranks of an exchange, and the values each rank encodes and owns.
#pragma once

#include "comm/collectives/grid.h"
#include "comm/collectives/hosts.h"
#include "comm/collectives/plan.h"

#include <tersor/collectives.h>

#include <cstdint>
#include <span>

namespace tersor {

class Hierarchy;

struct Ranks {
  int rank = 0;                          ///< this rank
  int count = 1;                         ///< number of ranks
  Grid grid = {};                        ///< of all ranks, if there is no hierarchy
  const Hierarchy* hierarchy = nullptr;  ///< null: all ranks exchange with all ranks
};

/// The properties that the plans of an exchange depend on.
struct ExchangeShape {
  Ranks ranks;
  std::span<const ExchangeParameter> params;
  Memory memory = Memory::kHost;  ///< of all values, states, words and messages
  /// True if the library below runs everything on the device and adds in its own order.
  bool queues = false;
  Threads* threads = nullptr;
  std::uint64_t signature = 0;

  unsigned thread_count() const { return threads == nullptr ? 1 : threads->count(); }
  bool on_device() const { return memory == Memory::kDevice; }
};

/// The hierarchy of a parameter. Null without a hierarchy and for a reduce-scatter over unequal
/// hosts.
const Hierarchy* hierarchy_of(const Ranks& ranks, const ExchangeParameter& param);

/// The number of ranks exchanging a parameter's encoded values: all ranks, or the owners of a host
/// shard.
int encoding_ranks(const Ranks& ranks, const ExchangeParameter& param);

/// The values a rank encodes of an added parameter, and the owned values in a two-shot allreduce.
StateRanges state_ranges(const Ranks& ranks, const ExchangeParameter& param, int rank);

}  // namespace tersor
