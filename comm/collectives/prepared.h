// What a collective needs before anything moves: codec, way, plans and buffers; equal calls use it
// again.
#pragma once

#include "comm/collectives/fields.h"
#include "comm/collectives/hierarchy.h"
#include "comm/collectives/pipeline.h"

#include <tersor/buffer.h>
#include <tersor/collectives.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tersor {

enum class Kind : std::uint8_t {
  kAllreduce,
  kReduceScatter,
  kAllgather,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kSend
};

/// What a prepared collective depends on: an equal call may use it again.
struct Key {
  const Transport* transport = nullptr;
  Kind kind = Kind::kAllreduce;
  std::string codec;
  Dtype dtype = Dtype::kF32;
  Memory memory = Memory::kHost;
  std::size_t count = 0;  ///< of a slot; all_to_all: of a row
  Reduction reduction = Reduction::kSum;
  Algorithm algorithm = Algorithm::kAuto;
  std::uint32_t parameter = 0;
  std::uint32_t order = 0;
  int root = 0;
  std::size_t chunk_count = 0;
  unsigned threads = 1;
  std::vector<int> hosts;  ///< as given
  std::vector<int> dims;
  double error_growth = kDefaultErrorGrowth;
  std::string host_codec;

  bool operator==(const Key&) const = default;
};

/// Plans, buffers and context of one shape of call.
struct Prepared {
  explicit Prepared(Key wanted) : key(std::move(wanted)), codec(make_codec(key.codec)) {}

  /// A codec that cannot be cut chooses among all values: each rank gathers all and keeps its
  /// shard. By hosts it chooses among those of each shard.
  bool gathers_whole() const {
    return key.kind == Kind::kReduceScatter && !by_hosts && !codec->traits().divisible;
  }

  /// Whether every rank owns a shard, or gets rows.
  bool is_of_shards() const {
    return key.kind == Kind::kReduceScatter || key.kind == Kind::kAllgather || deals();
  }
  bool deals() const { return key.kind == Kind::kAllToAll; }

  /// Whether ranks' values are added.
  bool adds() const {
    return key.kind == Kind::kAllreduce || key.kind == Kind::kReduceScatter ||
           key.kind == Kind::kReduce;
  }

  /// Whether it has one slot of all values; else one for each rank's.
  bool has_one_slot() const {
    return key.kind == Kind::kAllreduce || key.kind == Kind::kBroadcast ||
           key.kind == Kind::kReduce || key.kind == Kind::kSend || gathers_whole();
  }

  /// Those of an all_to_all are its lanes: what goes, on a grid what passes, what comes.
  int slot_count() const {
    if (has_one_slot()) return 1;
    const int dimensions = by_hosts ? 2 : context.grid.dimensions();
    return deals() ? (1 + dimensions) * context.ranks : context.ranks;
  }
  /// All ranks, where each owns something: by hosts, or on the grid of the context.
  Party party() const {
    return by_hosts ? tersor::by_hosts(hierarchy->groups(), context.rank)
                    : everybody(context.rank, context.grid);
  }
  /// What ranks agree on, or contribute.
  std::span<const Slot> own_slots() const {
    return std::span(slots).first(has_one_slot() ? 1 : static_cast<std::size_t>(context.ranks));
  }

  Key key;
  std::shared_ptr<const Codec> codec;
  Algorithm algorithm = Algorithm::kAuto;
  Algorithm encoded = Algorithm::kOneShot;  ///< the way of what is encoded: between hosts, if any
  std::vector<Slot> slots;
  ExchangeContext context;
  Fields fields;                         ///< what ranks agree on
  bool by_hosts = false;                 ///< so that there is a hierarchy
  std::shared_ptr<Hierarchy> hierarchy;  ///< null: all ranks exchange with all
  Buffer host_sums;                      ///< of a reduce-scatter: for the ranks of other hosts
  std::vector<ChunkPlan> chunks;
  std::unique_ptr<Pipeline> pipeline;
};

/// A hierarchy, for as long as calls name the same groups.
struct KnownHierarchy {
  const Transport* transport = nullptr;
  std::shared_ptr<Hierarchy> hierarchy;
};

/// Throws InvalidArgument where the options fit neither each other nor the ranks.
std::unique_ptr<Prepared> prepare(Transport& transport, Key key, const CollectiveOptions& options,
                                  KnownHierarchy& known);

}  // namespace tersor
