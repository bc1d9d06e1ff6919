// Operations and messages to end after a rank departed, or after a fault.
#include <string>
#include <tuple>

#include "comm/transport/host/delivery.h"

namespace tersor::host {

void Delivery::on_leave(ChannelState& channel, int peer) {
  drop_held(peer, &channel);
  fail_orphaned(channel);
  free_if_unused(channel);
}

// A receive matched with an announced message of the rank waits for another message or fails. The
// failure may drop other messages of the rank. Abandoning an operation sends messages and may free
// other channel states, so the loop iterates over ids.
void Delivery::on_departure(int peer) {
  while (IncomingMessage* const message = flow_.announced_by(peer)) {
    const auto [channel, batch, incoming] =
        std::tuple(message->channel, message->batch, message->incoming);
    if (channel != nullptr) channel->match_queue.remove(*message);
    message->requested = false;  // the payload never arrives
    drop(*message);
    if (batch != nullptr) match_receive(*channel, *batch, *incoming);
  }
  drop_held(peer, nullptr);
  std::vector<std::uint64_t> ids;
  for (const auto& [id, channel] : core_.channels.all()) ids.push_back(id);
  for (const std::uint64_t id : ids) {
    ChannelState* channel = core_.channels.find(id);
    if (channel == nullptr) continue;
    fail_orphaned(*channel);
    free_if_unused(*channel);
  }
}

// Drops messages announced to world rank `peer`. The peer left the channel `channel` or, if null,
// all channels. The operation may have failed and be gone.
void Delivery::drop_held(int peer, const ChannelState* channel) {
  const auto jobs = flow_.drop([&](int to, std::uint64_t on) {
    return to == peer && (channel == nullptr || on == channel->id);
  });
  for (const auto& job : jobs) {
    const auto sending = sends_.find(job.get());
    if (sending == sends_.end()) continue;
    const PendingSend send = sending->second;
    if (faults_.departed(*send.channel, send.peer))
      fail_batch(*send.channel, *send.batch, send.peer);
  }
}

void Delivery::fail_sends(int peer) {
  const auto is_stuck = [peer](const auto& send) {
    const PendingSend& each = send.second;
    return each.channel->is_isolated() && each.channel->member(each.peer) == peer;
  };
  for (;;) {
    const auto stuck = std::ranges::find_if(sends_, is_stuck);
    if (stuck == sends_.end()) return;
    const PendingSend each = stuck->second;
    fail_batch(*each.channel, *each.batch, each.peer);
  }
}

void Delivery::fail_orphaned(ChannelState& channel) {
  if (channel.domain != nullptr && faults_.is_comparing(*channel.domain)) return;
  while (!channel.members.empty() && !channel.faulty()) {  // no members: not joined yet
    const auto found = channel.match_queue.find_orphaned(
        [&](int peer) { return faults_.departed(channel, peer); });
    if (!found.has_value()) return;
    fail_batch(channel, *found->batch, found->peer);
  }
}

// An operation waiting for a departed rank fails alone on an isolated channel. Otherwise, the whole
// fault domain fails.
void Delivery::fail_batch(ChannelState& channel, Batch& batch, int peer) {
  const std::string cause = std::string(batch.name) + " on " + channel.name(channel.rank) + ": " +
                            faults_.departure_reason(channel, peer);
  if (channel.is_isolated())
    end(channel, batch, std::make_exception_ptr(PeerLostError(cause, peer)));
  else if (!faults_.is_comparing(*channel.domain))  // a comparison ends by itself
    core_.actions.fail(*channel.domain, cause);
}

void Delivery::copy_unsent(const FaultDomain& domain) const {
  for (const auto& [job, send] : sends_)
    if (send.channel->domain.get() == &domain)
      core_.actions.keep(send.channel->member(send.peer), job);
}

void Delivery::discard(const FaultDomain& domain) {
  for (const auto& [id, channel] : core_.channels.all())
    if (channel->domain.get() == &domain) drop_unexpected(*channel);
  flow_.drop([&](int, std::uint64_t id) {
    const ChannelState* channel = core_.channels.find(id);
    return channel != nullptr && channel->domain.get() == &domain;
  });
}

// After all members left or after a fault, the channel receives no more messages.
void Delivery::free_if_unused(ChannelState& channel) {
  const bool unused =
      faults_.departed(channel, kAnyRank) || (channel.faulty() && !core_.channels.any_isolated());
  if (!channel.released || !unused) return;
  drop_unexpected(channel);
  core_.channels.erase(channel);
}

}  // namespace tersor::host
