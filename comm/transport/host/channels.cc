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
    : lock_(lock), everybody_(&at(Signature().value())) {
  everybody_->members = all_ranks(ranks);
  everybody_->rank = rank;
  everybody_->domain = std::make_shared<FaultDomain>(everybody_->id, FaultDomain::Kind::kOrdinary);
  everybody_->domain->members = everybody_->members;
}

ChannelState& Channels::at(std::uint64_t id) {
  auto& channel = channels_[id];
  if (channel == nullptr) channel = std::make_unique<ChannelState>(id, lock_.take_event());
  return *channel;
}

ChannelState& Channels::join(ChannelState& channel, std::span<const int> members,
                             FaultDomain::Kind kind) {
  std::vector<int> of_all;
  for (const int member : members) of_all.push_back(channel.member(member));
  ChannelState& joined = at(channel_id(channel, of_all, channel.joined[of_all]++));
  joined.whole = channel.whole && members.size() == channel.members.size();
  joined.rank = static_cast<int>(std::ranges::find(members, channel.rank) - members.begin());
  if (kind == channel.domain->kind) {
    joined.domain = channel.domain;
  } else {
    if (joined.domain == nullptr) joined.domain = std::make_shared<FaultDomain>(joined.id, kind);
    joined.domain->members = of_all;
  }
  joined.members = std::move(of_all);
  any_isolated_ = any_isolated_ || kind == FaultDomain::Kind::kIsolated;
  ++present;
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
