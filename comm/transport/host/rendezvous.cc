// Flow control (flow.h): announced messages waiting for a request, and credits.
#include <string>
#include <utility>

#include "comm/transport/host/progress_engine.h"

namespace tersor::host {

// Announcements use memory of the peer, too.
void ProgressEngine::check_announced(const ChannelState& channel, const Batch& batch) const {
  for (const Outgoing& outgoing : batch.outgoing) {
    const int peer = channel.member(outgoing.peer);
    if (flow(peer).waiting < Flow::kMostWaiting) continue;
    throw InvalidArgumentError(std::string(batch.name) + " on " + channel.name(channel.rank) +
                               ": " + std::to_string(Flow::kMostWaiting) + " messages to " +
                               channel.name(outgoing.peer) +
                               " are not received yet: wait for their handles first");
  }
}

void ProgressEngine::keep(Wire::Payload& payload) {
  payload.block = in_block(payload.bytes);
  payload.bytes = payload.block.bytes();
}

// Stores the message before sending the announcement, because the request may arrive immediately.
void ProgressEngine::hold(int peer, Head head, Wire::Payload payload) {
  if (!payload.block && payload.job->keep_alive == nullptr) keep(payload);
  head.kind = Kind::kAnnounced;
  head.envelope.bytes = payload.bytes.size();
  ++flow(peer).waiting;
  held_[{peer, flow(peer).announced++}] = {head.channel, std::move(payload)};
  wire_->send(peer, to_message_head(head), {});
}

// Copies the announced payloads of a batch that ends early.
void ProgressEngine::keep_held(const Batch& batch) try {
  for (auto& [number, held] : held_) {
    const auto send = sends_.find(held.payload.job.get());
    const bool ends = send != sends_.end() && send->second.batch == &batch;
    if (ends && !held.payload.block) keep(held.payload);
  }
} catch (const std::exception& error) {
  raise_all(error.what());
}

void ProgressEngine::take_request(const Head& head, int peer) {
  auto found = held_.extract({peer, head.part});
  if (!found) return;
  --flow(peer).waiting;
  send(peer, {.part = head.part, .kind = Kind::kBody}, std::move(found.mapped().payload));
}

// Drops messages announced to world rank `peer`. The peer left the channel `channel` or, if null,
// all channels. The operation may have failed and be gone.
void ProgressEngine::drop_held(int peer, const ChannelState* channel) {
  for (auto held = held_.lower_bound({peer, 0});
       held != held_.end() && held->first.first == peer;) {
    if (channel != nullptr && held->second.channel != channel->id) {
      ++held;
      continue;
    }
    const auto [number, dropped] = *held;
    held = held_.erase(held);
    --flow(peer).waiting;
    const auto sending = sends_.find(dropped.payload.job.get());
    if (sending == sends_.end()) continue;
    const Outstanding late = sending->second;
    if (gone_from(*late.channel, late.peer)) abandon(*late.channel, *late.batch, late.peer);
    held = held_.upper_bound(number);
  }
}

// Drops the announcements of a lost rank. A receive matched with a dropped message waits for
// another message or fails.
void ProgressEngine::drop_announced(int peer) {
  std::vector<IncomingMessage*> messages;
  for (const auto& [number, message] : coming_)
    if (number.first == peer) messages.push_back(message);
  for (IncomingMessage* message : messages) {
    ChannelState* const channel = message->channel;
    Batch* const batch = message->batch;
    Incoming* const incoming = message->incoming;
    if (channel != nullptr) channel->match_queue.reject(*message);
    message->asked = false;  // the payload never arrives
    drop(*message);
    if (batch != nullptr) match_receive(*channel, *batch, *incoming);
  }
}

// The caller must not access the message afterwards: the payload may arrive and be delivered at
// once.
void ProgressEngine::request(IncomingMessage& message) {
  if (std::exchange(message.asked, true)) return;
  send(message.arrival.peer, {.part = message.number, .kind = Kind::kRequest});
}

void ProgressEngine::take_body(const Head& head, Wire::Arrival arrival) {
  const auto found = coming_.extract({arrival.peer, head.part});
  if (!found || found.mapped()->envelope.bytes != head.envelope.bytes)
    return raise_all("rank " + std::to_string(arrival.peer) +
                     " sent a message without an announcement");
  IncomingMessage& message = *found.mapped();
  message.announced = false;
  message.there = arrival.whole;
  message.payload = std::move(arrival.payload);
  message.arrival = std::move(arrival);
  if (message.there) return came(message);
  receive_rest(message);
  if (message.batch != nullptr) wake_for(*message.channel, *message.batch);
}

// Returns the credits of a message to the sender. A departed rank sends nothing and needs no
// credits.
void ProgressEngine::return_credits(IncomingMessage& message) {
  const int peer = message.arrival.peer;
  const std::size_t credits = flow(peer).collect_credits(std::exchange(message.cost, 0));
  if (credits == 0 || ignores_arrivals_ || gone_.contains(peer) || !wire_->right_thread()) return;
  send(peer, {.envelope = {.count = credits}, .kind = Kind::kCredits});
}

}  // namespace tersor::host
