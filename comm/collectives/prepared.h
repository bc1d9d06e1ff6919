// A prepared collective: codec, algorithm, plans and buffers. Equal calls reuse a prepared
// collective.
#pragma once

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

enum class CallKind : std::uint8_t {
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

/// The properties of a kind, as bits.
enum CallTrait : unsigned {
  kReduces = 1,    ///< True if values of ranks are added
  kSharded = 2,    ///< True if each rank owns a shard or receives rows
  kOneParam = 4,   ///< True for a single parameter of all values; otherwise one parameter per rank
  kRooted = 8,     ///< True if one rank has or receives values not for the others
  kFeedback = 16,  ///< True if lost values may be sent in a later call
  // The span with the shards of all ranks, contiguous; without either bit, no span has them:
  kWholeInput = 32,
  kWholeOutput = 64
};

struct PreparedCall;

struct CallInfo {
  std::string_view name;
  std::string_view input, output;  ///< names of the spans in error texts, if given by all ranks
  unsigned traits;
  /// Plans all chunks; null if the caller plans the chunks (splits.h, sending.cc).
  std::vector<ChunkPlan> (*plan)(const PreparedCall& prepared);
};

const CallInfo& info_of(CallKind kind);
inline bool has(CallKind kind, CallTrait trait) { return (info_of(kind).traits & trait) != 0; }

/// The options of a call that determine the ranks' grid and hosts.
struct GridOptions {
  std::vector<int> hosts;  ///< as given
  std::vector<int> dims;
  double error_growth = kDefaultErrorGrowth;
  std::string host_codec;

  bool operator==(const GridOptions&) const = default;
};

/// The values of a call: a parameter, or in all_to_all a row.
struct CallValues {
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Memory memory = Memory::kHost;
  std::uint32_t parameter = 0;
  std::uint32_t order = 0;

  bool operator==(const CallValues&) const = default;
};

/// The inputs of a prepared collective. Equal keys allow reuse.
struct CallKey {
  const Transport* transport = nullptr;
  CallKind kind = CallKind::kAllreduce;
  int root = 0;
  CallValues values;
  std::string codec;
  Reduction reduction = Reduction::kSum;
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t chunk_count = 0;
  unsigned threads = 1;
  GridOptions grid;

  bool operator==(const CallKey&) const = default;
};

/// Plans, buffers and context for a shape of call.
struct PreparedCall {
  explicit PreparedCall(CallKey call) : key(std::move(call)), codec(make_codec(key.codec)) {}

  /// True if each rank gathers everything and keeps its shard, because an indivisible codec selects
  /// among all values. A hierarchical call selects among the values of each shard.
  bool gathers_whole() const {
    return key.kind == CallKind::kReduceScatter && !hierarchical && !codec->traits().sent_divisible;
  }

  bool is(CallTrait trait) const { return has(key.kind, trait); }
  Algorithm algorithm() const { return hierarchical ? Algorithm::kHierarchical : encoded; }

  /// Parameters for agreed or contributed values: a parameter of all values, or a parameter per
  /// rank.
  int own_param_count() const { return is(kOneParam) || gathers_whole() ? 1 : context.ranks.count; }
  std::span<const ExchangeParameter> own_params() const {
    return std::span(params).first(static_cast<std::size_t>(own_param_count()));
  }
  /// An all_to_all has a parameter per shard: first the sent shards, then on a grid the forwarded
  /// shards, finally the received shards.
  int param_count() const {
    const int dimensions = hierarchical ? 2 : context.ranks.grid.dimensions();
    return key.kind == CallKind::kAllToAll ? (1 + dimensions) * context.ranks.count
                                           : own_param_count();
  }
  /// All ranks, each an owner: hierarchical, or on the grid of the context.
  Group group() const {
    return hierarchical ? tersor::hierarchical_group(hierarchy->groups(), context.ranks.rank)
                        : full_group(context.ranks.rank, context.ranks.grid);
  }

  CallKey key;
  std::shared_ptr<const Codec> codec;
  /// Algorithm of the encoded values; between hosts if hierarchical.
  Algorithm encoded = Algorithm::kOneShot;
  // One entry per parameter:
  std::vector<ExchangeParameter> params;
  std::vector<ParameterBinding> bindings;
  std::vector<ParameterFeedback> feedback;
  ExchangeContext context;
  bool hierarchical = false;             ///< True if there is a hierarchy
  std::shared_ptr<Hierarchy> hierarchy;  ///< null: all ranks exchange with all ranks
  Buffer host_sums;                      ///< in a reduce-scatter: for the ranks of other hosts
  std::vector<ChunkPlan> chunks;
  std::unique_ptr<Pipeline> pipeline;
};

/// A hierarchy, reused while calls name the same groups.
struct HierarchyCache {
  const Transport* transport = nullptr;
  std::shared_ptr<Hierarchy> hierarchy;
};

/// Prepares a collective. Throws InvalidArgumentError if options contradict each other or do not
/// fit the ranks.
std::unique_ptr<PreparedCall> prepare(Transport& transport, CallKey key,
                                      const CollectiveOptions& options, HierarchyCache& cache);

}  // namespace tersor
