#include "comm/transport/host/channels.h"

#include "comm/transport/arguments.h"

namespace tersor::host {
namespace {

/// The channel id. All ranks making the same channel compute the same id.
std::uint64_t channel_id(const ChannelState& parent, std::span<const int> members, int ordinal) {
  Signature signature;
  signature.add(parent.id).add(ordinal);
  for (const int member : members) signature.add(member);
  return signature.value();
}

}  // namespace

Channels::Channels(SharedLock& lock, int rank, int ranks)
    : lock_(lock), world_(&at(Signature().value())) {
  world_->members = all_ranks(ranks);
  world_->rank = rank;
  world_->domain = std::make_shared<FaultDomain>(world_->id, FaultDomain::Kind::kOrdinary);
  world_->domain->members = world_->members;
}

ChannelState& Channels::at(std::uint64_t id) {
  auto& channel = channels_[id];
  if (channel == nullptr) channel = std::make_unique<ChannelState>(id, lock_.take_event());
  return *channel;
}

ChannelState& Channels::join(ChannelState& channel, std::span<const int> members,
                             FaultDomain::Kind kind) {
  std::vector<int> world_ranks;
  for (const int member : members) world_ranks.push_back(channel.member(member));
  ChannelState& joined = at(channel_id(channel, world_ranks, channel.child_counts[world_ranks]++));
  joined.whole = channel.whole && members.size() == channel.members.size();
  joined.rank = static_cast<int>(std::ranges::find(members, channel.rank) - members.begin());
  if (kind == channel.domain->kind) {
    joined.domain = channel.domain;
  } else {
    if (joined.domain == nullptr) joined.domain = std::make_shared<FaultDomain>(joined.id, kind);
    joined.domain->members = world_ranks;
  }
  joined.members = std::move(world_ranks);
  any_isolated_ = any_isolated_ || kind == FaultDomain::Kind::kIsolated;
  ++open_channels;
  return joined;
}

std::vector<std::shared_ptr<FaultDomain>> Channels::domains() const {
  std::vector<std::shared_ptr<FaultDomain>> all;
  for (const auto& [id, channel] : channels_)
    if (channel->domain != nullptr && std::ranges::find(all, channel->domain) == all.end())
      all.push_back(channel->domain);
  return all;
}

const std::shared_ptr<FaultDomain>& Channels::domain_of(std::uint64_t id) {
  for (const auto& [number, channel] : channels_)
    if (channel->domain != nullptr && channel->domain->id == id) return channel->domain;
  auto& domain = at(id).domain;
  if (domain == nullptr) domain = std::make_shared<FaultDomain>(id, FaultDomain::Kind::kOrdinary);
  return domain;
}

}  // namespace tersor::host
