#include "comm/collectives/prepared.h"

#include "comm/collectives/choose.h"
#include "comm/collectives/planner.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tersor {
namespace {

void make_params(PreparedCall& prepared) {
  const std::size_t count = prepared.gathers_whole()
                                ? prepared.key.values.count * prepared.context.ranks.count
                                : prepared.key.values.count;
  for (int i = 0; i < prepared.param_count(); ++i)
    prepared.params.push_back({.parameter = prepared.key.values.parameter,
                               .count = count,
                               .first_index = count * static_cast<std::uint64_t>(i),
                               .dtype = prepared.key.values.dtype,
                               .codec = prepared.codec});
  prepared.bindings.resize(prepared.params.size());
  prepared.feedback.resize(prepared.params.size());
  prepared.context.params = prepared.params;
  prepared.context.bindings = prepared.bindings;
  prepared.context.feedback = prepared.feedback;
  prepared.context.counters.resize(prepared.params.size());
}

/// The hosts of a hierarchical call. Named hosts must suit shards. Hosts found by the transport are
/// ignored if unsuitable.
Hosts hosts_of(const PreparedCall& prepared, const Transport& transport) {
  const CallKey& key = prepared.key;
  if (!key.grid.hosts.empty()) check_hosts(key.grid.hosts, transport.ranks());
  const bool supports_hierarchy = key.kind == CallKind::kAllreduce || prepared.is(kSharded);
  if (!supports_hierarchy || key.algorithm != Algorithm::kHierarchical) return {};
  Hosts hosts = find_hosts(transport, key.grid.hosts, key.grid.host_codec, key.grid.error_growth);
  if (!hosts.groups || key.kind == CallKind::kAllreduce || hosts.groups->even()) return hosts;
  if (!key.grid.hosts.empty()) check_even(*hosts.groups, prepared.context.call.name);
  return {};
}

/// On a grid, sums are encoded again, but a reduce-scatter keeps no residual for them.
void check_grid(const PreparedCall& prepared) {
  const Grid& grid = prepared.context.ranks.grid;
  if (!prepared.is(kSharded) || prepared.hierarchical || grid.is_direct()) return;
  const std::string name(prepared.context.call.name);
  if (grid.owners() != grid.group_size())
    throw InvalidArgumentError(name + " needs dims with a product of " +
                               std::to_string(grid.group_size()) + ", the number of ranks, not " +
                               std::to_string(grid.owners()));
  if (prepared.key.kind == CallKind::kAllToAll && grid.dimensions() > 2)
    throw InvalidArgumentError("dims are " + text_of(grid.digits()) + ": give at most two for " +
                               name);
  if (prepared.is(kReduces) && !prepared.gathers_whole() && prepared.codec->has_feedback())
    throw InvalidArgumentError(
        name +
        " with dims keeps no residual of the partial sums: leave out +ef, or "
        "dims");
}

constexpr std::size_t kMinChainChunk = std::size_t{1} << 15;  // values per chunk

/// Values per chunk along a chain. The last rank waits a chunk's time for each preceding rank, so
/// chunks are short compared with the whole.
std::size_t chain_chunk(const PreparedCall& prepared) {
  constexpr std::size_t kChunksPerRank = 32;
  const auto chunks = kChunksPerRank * static_cast<std::size_t>(prepared.context.ranks.count);
  return std::min(std::max(prepared.key.values.count / chunks, kMinChainChunk),
                  prepared.key.chunk_count);
}

/// True if a chain is faster than two-shot. Two-shot sends 2 (n-1)/n of the values over the root's
/// link. Along a chain, all values pass after each intermediate rank has forwarded a chunk (with a
/// latency counted as the values of a short chunk). The codec must be lossless, because each rank
/// encodes the sum. A mean is impossible, because a mean is divided during addition.
bool chain_is_faster(const PreparedCall& prepared) {
  const CallKey& key = prepared.key;
  const auto ranks = static_cast<std::size_t>(prepared.context.ranks.count);
  const bool exact = prepared.codec->traits().lossless && key.values.dtype == Dtype::kF32;
  if (!exact || key.reduction != Reduction::kSum || ranks < 3 ||
      key.algorithm != Algorithm::kAuto || !key.grid.dims.empty() || prepared.context.queues)
    return false;
  const std::size_t latency = (ranks - 2) * (chain_chunk(prepared) + kMinChainChunk);
  return ranks * (key.values.count + latency) < 2 * (ranks - 1) * key.values.count;
}

/// Chooses the algorithm.
void choose_encoded_algorithm(PreparedCall& prepared, const std::optional<HostGroups>& groups) {
  if (prepared.key.kind != CallKind::kAllreduce) {  // checked before anything is sent
    choose_reduce_scatter(*prepared.codec, prepared.key.values.dtype, prepared.context.call.name);
    if (prepared.key.kind == CallKind::kReduce && !chain_is_faster(prepared))
      prepared.encoded = choose_algorithm({.codec = prepared.codec.get(),
                                           .dtype = prepared.key.values.dtype,
                                           .count = prepared.key.values.count,
                                           .ranks = prepared.context.ranks.count,
                                           .requested = Algorithm::kTwoShot});
    return;
  }
  const auto host_shards = groups ? static_cast<std::size_t>(groups->host_shards()) : 1;
  prepared.encoded =
      choose_algorithm({.codec = prepared.codec.get(),
                        .dtype = prepared.key.values.dtype,
                        .count = ceil_div(prepared.key.values.count, host_shards),
                        .ranks = groups ? groups->hosts() : prepared.context.ranks.count,
                        .requested = prepared.key.algorithm,
                        .single_gradient = !groups && !prepared.context.queues});
  if (!groups && prepared.encoded == Algorithm::kNative)
    prepared.context.call.whole_bytes =
        prepared.key.values.count * dtype_bytes(prepared.key.values.dtype);
}

void find_hierarchy(Transport& transport, PreparedCall& prepared, Hosts hosts,
                    HierarchyCache& cache) {
  const HostGroups& groups = *hosts.groups;
  const InterHost inter_host = prepared.is(kSharded) ? InterHost::kFrames : InterHost::kAny;
  const bool same = cache.transport == &transport && cache.hierarchy->inter_host() >= inter_host &&
                    cache.hierarchy->codec().spec().text() == hosts.codec->spec().text() &&
                    cache.hierarchy->groups().grid().dimensions() == groups.grid().dimensions() &&
                    std::ranges::equal(cache.hierarchy->groups().numbers(), groups.numbers());
  if (!same) {
    check_agreement(prepared.context);
    cache = {&transport, std::make_shared<Hierarchy>(transport, *std::move(hosts.groups),
                                                     std::move(hosts.codec), inter_host)};
  }
  prepared.hierarchy = cache.hierarchy;
  prepared.context.ranks.hierarchy = prepared.hierarchy.get();
}

void make_host_sums(PreparedCall& prepared) {
  if (!prepared.hierarchical || prepared.key.kind != CallKind::kReduceScatter) return;
  const auto others = static_cast<std::size_t>(prepared.hierarchy->groups().hosts() - 1);
  prepared.host_sums =
      Buffer(others * prepared.key.values.count * dtype_bytes(prepared.key.values.dtype),
             prepared.key.values.memory);
}

Group flat_group(const PreparedCall& prepared) {
  return full_group(prepared.context.ranks.rank, prepared.context.ranks.count);
}

using Plans = std::vector<ChunkPlan>;

Plans plan_allreduce(const PreparedCall& prepared) {
  return Planner(prepared.context).cut(0, prepared.encoded, prepared.key.chunk_count);
}

/// Plans a collective with a shard per rank.
Plans plan_by_rank(const PreparedCall& prepared, const Group& group, const Schedule& schedule) {
  return Planner(prepared.context).by_rank(group, schedule, prepared.key.chunk_count);
}

Plans plan_reduce_scatter(const PreparedCall& prepared) {
  if (prepared.gathers_whole()) return plan_allreduce(prepared);
  if (!prepared.hierarchical) {
    const Group all = full_group(prepared.context.ranks.rank, prepared.context.ranks.grid);
    return plan_by_rank(prepared, all, reduce_scatter(all));
  }
  std::vector<Piece> pieces;
  for (std::uint32_t rank = 0; rank < prepared.params.size(); ++rank)
    pieces.push_back({rank, {0, prepared.key.values.count}});
  return Planner(prepared.context).scattered(pieces, prepared.key.chunk_count);
}

Plans plan_allgather(const PreparedCall& prepared) {
  return plan_by_rank(prepared, prepared.group(), all_gather(prepared.group()));
}

// Short values use a tree.
Plans plan_broadcast(const PreparedCall& prepared) {
  const CallKey& key = prepared.key;
  const Group all = flat_group(prepared);
  const Planner planner(prepared.context);
  if (key.values.count * dtype_bytes(key.values.dtype) <= kOneShotBytes)
    return planner.cut_by(tree_broadcast(all, key.root), Exchange::kGather, key.chunk_count);
  return planner.cut_by(chain_broadcast(all, key.root), Exchange::kGather, chain_chunk(prepared));
}

Plans plan_reduce(const PreparedCall& prepared) {
  const CallKey& key = prepared.key;
  const Planner planner(prepared.context);
  if (prepared.encoded == Algorithm::kOneShot)
    return planner.cut_by(chain_reduce(flat_group(prepared), key.root), Exchange::kGather,
                          chain_chunk(prepared));
  return planner.cut_by(reduce_to(prepared.group(), key.root), Exchange::kTwoShot, key.chunk_count);
}

template <Schedule (*make_schedule)(const Group&, int root)>
Plans plan_rooted(const PreparedCall& prepared) {
  const Group all = flat_group(prepared);
  return plan_by_rank(prepared, all, make_schedule(all, prepared.key.root));
}

constexpr CallInfo kCallInfos[] = {
    {"allreduce", "the gradient", "", kReduces | kOneParam | kFeedback, plan_allreduce},
    {"reduce_scatter", "the input", "the shard", kReduces | kSharded | kFeedback | kWholeInput,
     plan_reduce_scatter},
    {"allgather", "the shard", "the output", kSharded | kFeedback | kWholeOutput, plan_allgather},
    {"broadcast", "the values", "", kOneParam | kRooted, plan_broadcast},
    {"reduce", "the input", "", kReduces | kOneParam | kRooted | kFeedback, plan_reduce},
    {"gather", "the shard", "", kRooted | kFeedback | kWholeOutput, plan_rooted<gather_to>},
    {"scatter", "", "the shard", kRooted | kWholeInput, plan_rooted<scatter_from>},
    {"all_to_all", "the input", "the output", kSharded, nullptr},
    {"send", "", "", kOneParam, nullptr}};

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const CallInfo& info : kCallInfos) names.emplace_back(info.name);
  return names;
}

Agreement agreement_of(const PreparedCall& prepared, const CollectiveOptions& options,
                       const Hosts& hosts) {
  Agreement agreement;
  agreement.add("operation", prepared.key.kind, kind_names())
      .add("reduction", options.reduction, reduction_names())
      .add("algorithm", prepared.algorithm(), algorithm_names())
      .add("ranks", static_cast<std::uint32_t>(prepared.context.ranks.count))
      .add("chunk_count", static_cast<std::uint64_t>(prepared.key.chunk_count));
  for (const ExchangeParameter& param : prepared.own_params())
    agreement.add("dtype", param.dtype, dtype_names())
        .add("count", static_cast<std::uint64_t>(param.count))
        .add("first_index", param.first_index)
        .add("codec", prepared.codec->spec().text());
  if (prepared.context.on_device()) agreement.add("memory", std::string_view("device"));
  agreement.add_unless_zero("root", static_cast<std::uint32_t>(prepared.key.root))
      .add_unless_zero("order in memory", options.order, order_mark());
  add_grid(agreement, prepared.context.ranks.grid);
  if (hosts.groups) add_groups(agreement, *hosts.groups, options.host_codec);
  return agreement;
}

void make_context(PreparedCall& prepared, Transport& transport, const CollectiveOptions& options) {
  ExchangeContext& context = prepared.context;
  context.transport = &transport;
  context.ranks.rank = transport.rank();
  context.ranks.count = transport.ranks();
  const bool uses_grid = !prepared.key.grid.dims.empty() || !prepared.is(kSharded);
  context.ranks.grid = uses_grid ? Grid::of(prepared.key.grid.dims, context.ranks.count,
                                            prepared.key.grid.error_growth)
                                 : Grid(context.ranks.count);
  context.call.name = info_of(prepared.key.kind).name;
  context.call.timeout = options.timeout;
  context.threads = options.threads;
  context.set_memory(prepared.key.values.memory);
}

}  // namespace

const CallInfo& info_of(CallKind kind) { return kCallInfos[static_cast<std::size_t>(kind)]; }

std::unique_ptr<PreparedCall> prepare(Transport& transport, CallKey key,
                                      const CollectiveOptions& options, HierarchyCache& cache) {
  auto prepared = std::make_unique<PreparedCall>(std::move(key));
  make_context(*prepared, transport, options);
  Hosts hosts = hosts_of(*prepared, transport);
  if (hosts.single_host) prepared->codec = hosts.codec;
  prepared->hierarchical = hosts.groups.has_value();
  check_grid(*prepared);
  make_params(*prepared);
  choose_encoded_algorithm(*prepared, hosts.groups);
  prepared->context.set_agreement(agreement_of(*prepared, options, hosts));
  if (prepared->hierarchical) find_hierarchy(transport, *prepared, std::move(hosts), cache);
  make_host_sums(*prepared);
  if (const auto plan = info_of(prepared->key.kind).plan) prepared->chunks = plan(*prepared);
  prepared->pipeline = std::make_unique<Pipeline>(prepared->context);
  for (const ChunkPlan& chunk : prepared->chunks)
    prepared->pipeline->prepare(chunk, prepared->chunks.size());
  return prepared;
}

}  // namespace tersor
