#include "comm/collectives/hierarchy.h"

#include <string>
#include <utility>

namespace tersor {
namespace {

std::unique_ptr<Transport> split_owners(Transport& transport, const HostGroups& groups,
                                        InterHost inter_host) {
  if (inter_host == InterHost::kFrames || !groups.encodes(transport.rank())) return nullptr;
  return transport.split(groups.owners(groups.local_rank(transport.rank())));
}

std::shared_ptr<const Codec> make_host_codec(std::string_view spec) {
  auto codec = make_codec(spec);
  const std::string text = codec->spec().text();
  if (text != "none" && text != "bf16")
    throw InvalidArgumentError("host_codec is " + text + ": give none or bf16");
  return codec;
}

}  // namespace

Hierarchy::Hierarchy(Transport& transport, HostGroups groups, std::shared_ptr<const Codec> codec,
                     InterHost inter_host)
    : groups_(std::move(groups)),
      codec_(std::move(codec)),
      inter_host_(inter_host),
      owners_(split_owners(transport, groups_, inter_host)) {}

Hosts find_hosts(const Transport& transport, const std::vector<int>& named, std::string_view codec,
                 double error_growth) {
  Hosts hosts{.codec = make_host_codec(codec)};
  HostGroups groups(named.empty() ? transport.hosts() : named, transport.ranks(), error_growth);
  hosts.single_host = groups.hosts() == 1;
  if (!hosts.single_host && groups.hosts() != groups.ranks()) hosts.groups = std::move(groups);
  return hosts;
}

const Hierarchy* hierarchy_of(const Ranks& ranks, const ExchangeParameter& param) {
  const Hierarchy* hierarchy = ranks.hierarchy;
  const bool scatters = param.collective == Collective::kReduceScatter;
  const bool fits = hierarchy != nullptr && (!scatters || hierarchy->groups().even());
  return fits ? hierarchy : nullptr;
}

int encoding_ranks(const Ranks& ranks, const ExchangeParameter& param) {
  const Hierarchy* hierarchy = hierarchy_of(ranks, param);
  return hierarchy == nullptr ? ranks.count : hierarchy->groups().hosts();
}

StateRanges state_ranges(const Ranks& ranks, const ExchangeParameter& param, int rank) {
  const Range whole{0, param.count};
  const Hierarchy* hierarchy = hierarchy_of(ranks, param);
  if (hierarchy == nullptr)
    return {whole, ranks.grid.owned(whole, rank, param.parameter, param.unit())};
  if (param.collective == Collective::kReduceScatter)
    return {hierarchy->groups().scattered_range(param.count, rank), {}};
  return hierarchy->groups().state_ranges(param.count, rank, param.parameter, param.unit());
}

Transport* sum_transport_of(const ExchangeContext& context) {
  return context.ranks.hierarchy == nullptr ? context.transport : context.ranks.hierarchy->owners();
}

std::uint64_t sent_bytes(const ExchangeContext& context) {
  const Transport* split = sum_transport_of(context);
  const bool is_split = split != nullptr && split != context.transport;
  return context.transport->counters().sent_bytes + (is_split ? split->counters().sent_bytes : 0);
}

void add_groups(Agreement& agreement, const HostGroups& groups, std::string_view host_codec) {
  agreement.add("host_codec", host_codec);
  for (const int host : groups.numbers()) agreement.add("a host", static_cast<std::uint32_t>(host));
}

void add_grid(Agreement& agreement, const Grid& grid) {
  if (grid.is_direct()) return;
  agreement.add("grid", std::string_view("grid"));
  for (const int digit : grid.digits()) agreement.add("dims", static_cast<std::uint32_t>(digit));
}

void check_even(const HostGroups& groups, std::string_view what) {
  if (groups.even()) return;
  const std::vector<int> ranks = groups.by_host();
  std::string sizes;
  for (std::size_t i = 0; i < ranks.size(); i += groups.host_members(ranks[i]).size())
    sizes += (i == 0 ? "" : ", ") + std::to_string(groups.host_members(ranks[i]).size());
  throw InvalidArgumentError(
      std::string(what) + " needs the same number of ranks on each host, but the hosts have " +
      sizes + ": choose an algorithm other than hierarchical, or leave hosts out");
}

void check_agreement(const ExchangeContext& context) {
  context.transport->barrier(context.operation(context.call.name)).wait_synchronize();
}

}  // namespace tersor
