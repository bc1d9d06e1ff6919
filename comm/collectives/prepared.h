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
#include <string_view>
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

/// What kinds are, as bits.
enum KindTrait : unsigned {
  kAdds = 1,        ///< ranks' values are added
  kShares = 2,      ///< every rank owns a shard, or gets rows
  kOneSlot = 4,     ///< of all values; else one for each rank's
  kRooted = 8,      ///< one rank has, or gets, what is not for the others
  kFeedsBack = 16,  ///< what is lost may be paid in a later call
  // Which span has the shards of all ranks, one behind the other; without either, none has:
  kWholeInput = 32,
  kWholeOutput = 64
};

/// What there is to know of a kind.
struct KindInfo {
  std::string_view name;
  std::string_view input, output;  ///< what messages call the spans that all ranks give
  unsigned traits;
};

inline constexpr KindInfo kKinds[] = {
    {"allreduce", "the gradient", "", kAdds | kOneSlot | kFeedsBack},
    {"reduce_scatter", "the input", "the shard", kAdds | kShares | kFeedsBack | kWholeInput},
    {"allgather", "the shard", "the output", kShares | kFeedsBack | kWholeOutput},
    {"broadcast", "the values", "", kOneSlot | kRooted},
    {"reduce", "the input", "", kAdds | kOneSlot | kRooted | kFeedsBack},
    {"gather", "the shard", "", kRooted | kFeedsBack | kWholeOutput},
    {"scatter", "", "the shard", kRooted | kWholeInput},
    {"all_to_all", "the input", "the output", kShares},
    {"send", "", "", kOneSlot}};

inline const KindInfo& info_of(Kind kind) { return kKinds[static_cast<std::size_t>(kind)]; }
inline bool has(Kind kind, KindTrait trait) { return (info_of(kind).traits & trait) != 0; }

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

  bool is(KindTrait trait) const { return has(key.kind, trait); }

  /// What ranks agree on, or contribute: a slot of all values, or one for each rank's.
  int own_slot_count() const { return is(kOneSlot) || gathers_whole() ? 1 : context.ranks; }
  std::span<const Slot> own_slots() const {
    return std::span(slots).first(static_cast<std::size_t>(own_slot_count()));
  }
  /// An all_to_all has a slot for each lane: first those that leave this rank, then on a grid those
  /// that it passes on, last those that arrive.
  int slot_count() const {
    const int dimensions = by_hosts ? 2 : context.grid.dimensions();
    return key.kind == Kind::kAllToAll ? (1 + dimensions) * context.ranks : own_slot_count();
  }
  /// All ranks, where each owns something: by hosts, or on the grid of the context.
  Party party() const {
    return by_hosts ? tersor::by_hosts(hierarchy->groups(), context.rank)
                    : everybody(context.rank, context.grid);
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
