// Implements delivery.h, except departures of ranks (departures.cc).
#include "comm/transport/host/delivery.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tersor::host {
namespace {

/// The part of a block that holds `bytes`, or an empty block if the bytes lie elsewhere.
Block part_of(const Block& block, ConstByteSpan bytes) {
  const ConstByteSpan all = block.bytes();
  const bool inside =
      bytes.data() >= all.data() && bytes.data() + bytes.size() <= all.data() + all.size();
  if (!block || !inside) return {};
  return block.part(static_cast<std::size_t>(bytes.data() - all.data()), bytes.size());
}

bool has_failed(const ChannelState& channel, const Batch& batch) {
  return channel.faulty() || batch.error != nullptr;
}

}  // namespace

// Consecutive sends of the same payload share a copy.
void Delivery::pack(Batch& batch) const {
  if (core_.traits.sends_in_place && batch.keep_alive != nullptr) return;
  const Outgoing* last = nullptr;
  for (Outgoing& outgoing : batch.outgoing) {
    if (outgoing.block || outgoing.payload.size() <= core_.traits.copied_bytes) continue;
    outgoing.block = part_of(batch.block, outgoing.payload);
    if (outgoing.block) continue;
    const bool same = last != nullptr && last->payload.data() == outgoing.payload.data() &&
                      last->payload.size() == outgoing.payload.size();
    outgoing.block = same ? last->block : core_.pool.copy(outgoing.payload);
    last = &outgoing;
  }
}

// Announcements use memory of the peer, too.
void Delivery::check_announced(const ChannelState& channel, const Batch& batch) const {
  for (const Outgoing& outgoing : batch.outgoing)
    if (flow_.is_full(channel.member(outgoing.peer)))
      throw InvalidArgumentError(std::string(batch.name) + " on " + channel.name(channel.rank) +
                                 ": " + std::to_string(FlowControl::kMaxAnnounced) +
                                 " messages to " + channel.name(outgoing.peer) +
                                 " are not received yet: wait for their handles first");
}

void Delivery::post(ChannelState& channel, Batch& batch) {
  if (!batch.incoming.empty()) channel.match_queue.post(batch);
  for (Outgoing& outgoing : batch.outgoing) send(channel, batch, outgoing);
  for (const Outgoing& outgoing : batch.outgoing)
    if (!has_failed(channel, batch) && faults_.departed(channel, outgoing.peer))
      fail_batch(channel, batch, outgoing.peer);
  for (Incoming& incoming : batch.incoming) match_receive(channel, batch, incoming);
  if (!batch.takes_all) return;
  channel.match_queue.record_last(batch);
  if (const IncomingMessage* message = channel.match_queue.unexpected(batch.key))
    check_unexpected(channel, *message);
}

// Sends to each reachable rank, even if other ranks are gone. A batch without receives must wait
// until its messages left, on wires without background progress. The caller may next wait for
// something else and never poll: copied messages to a peer that is still connecting, for example,
// would never leave.
void Delivery::send(ChannelState& channel, Batch& batch, Outgoing& outgoing) {
  if (has_failed(channel, batch) || faults_.departed(channel, outgoing.peer)) return;
  Head head{.envelope = batch.envelope,
            .channel = channel.id,
            .tag = batch.key.tag,
            .part = batch.key.part,
            .from = channel.rank};
  channel.counters.sent_bytes += core_.actions.wire_bytes(outgoing.payload.size());
  ++channel.counters.sent_messages;
  Wire::Payload payload{.bytes = outgoing.payload, .block = std::move(outgoing.block)};
  if (payload.block) payload.bytes = payload.block.bytes();
  const bool borrowed = !payload.block && payload.bytes.size() > core_.traits.copied_bytes;
  const bool must_leave = batch.incoming.empty() && !core_.moves_alone();
  const int peer = channel.member(outgoing.peer);
  const bool eager = flow_.send_eagerly(peer, payload.bytes.size());
  if (borrowed || must_leave || !eager) payload.job = track_send(channel, batch, outgoing.peer);
  if (eager) return core_.actions.send(peer, head, std::move(payload));
  if (!payload.block && payload.job->keep_alive == nullptr) keep(payload);
  head.type = MessageType::kAnnounced;
  head.envelope.bytes = payload.bytes.size();
  flow_.hold(peer, channel.id, std::move(payload));  // first: the request may arrive immediately
  core_.actions.send(peer, head);
}

// Keeps the batch open until the payload has left. The network may read the owner's memory even
// after an error.
std::shared_ptr<Wire::Job> Delivery::track_send(ChannelState& channel, Batch& batch, int peer) {
  auto job = std::make_shared<Wire::Job>();
  job->keep_alive = batch.keep_alive;
  job->done = [this, &channel](const Wire::Job& done) {
    const auto send = sends_.extract(&done);
    if (send && channel.match_queue.close_one(*send.mapped().batch))
      core_.lock.signal(channel.event);
  };
  sends_[job.get()] = {&batch, &channel, peer};
  batch.open.fetch_add(1, std::memory_order_relaxed);
  return job;
}

void Delivery::match_receive(ChannelState& channel, Batch& batch, Incoming& incoming) {
  if (has_failed(channel, batch)) return;
  if (IncomingMessage* message = channel.match_queue.match_unexpected(batch, incoming))
    on_matched(channel, *message);
  else if (faults_.departed(channel, incoming.peer))
    fail_orphaned(channel);
}

// No later batch can receive this message: the sender calls something else. On isolated channels,
// such a message ends nothing.
void Delivery::check_unexpected(ChannelState& channel, const IncomingMessage& message) {
  if (channel.members.empty() || channel.faulty()) return;  // not joined yet
  if (channel.is_isolated()) return;
  if (!channel.is_sender(message.from, message.arrival.peer))
    return faults_.fail_forged_sender(message.arrival.peer);
  const std::string what = channel.match_queue.unexpected_text(message, channel.name(channel.rank),
                                                               channel.name(message.from));
  if (what.empty()) return;
  const std::uint64_t own = channel.match_queue.last_signature(message.key);
  const std::uint64_t other = message.envelope.signature;
  if (own == other) return core_.actions.fail(*channel.domain, what);
  faults_.compare_options(channel, {channel.rank, own, message.from, other}, what);
}

void Delivery::cancel(ChannelState& channel, Batch& batch) {
  const auto is_own = [&](const auto& send) { return send.second.batch == &batch; };
  try {
    flow_.for_each_held([&](Wire::Payload& payload) {
      const auto send = sends_.find(payload.job.get());
      if (send != sends_.end() && is_own(*send) && !payload.block) keep(payload);
    });
  } catch (const std::exception& error) {
    faults_.fail_all(error.what());
  }
  std::erase_if(sends_, [&](const auto& send) {
    if (is_own(send)) core_.actions.keep(channel.member(send.second.peer), send.first);
    return is_own(send);
  });
  const std::vector<IncomingMessage*> matched = channel.match_queue.cancel(batch);
  if (channel.faulty()) return drop_unexpected(channel);
  for (IncomingMessage* message : matched) on_matched(channel, *message);
}

void Delivery::keep(Wire::Payload& payload) const {
  payload.block = core_.pool.copy(payload.bytes);
  payload.bytes = payload.block.bytes();
}

void Delivery::end(ChannelState& channel, Batch& batch, std::exception_ptr error) {
  cancel(channel, batch);
  batch.error = std::move(error);
  batch.open.store(0, std::memory_order_release);
  core_.lock.signal(channel.event);
}

std::vector<int> Delivery::unsent(const Batch& batch) const {
  std::vector<int> ranks;
  for (const auto& [job, sending] : sends_)
    if (sending.batch == &batch) ranks.push_back(sending.peer);
  return ranks;
}

Awaited Delivery::awaited(const ChannelState& channel, std::uint32_t tag) const {
  Awaited first = channel.match_queue.awaited(tag);
  for (const auto& [job, sending] : sends_) {
    const Batch& batch = *sending.batch;
    if (sending.channel != &channel || (batch.key.tag > tag && batch.key.tag != kUnorderedTag))
      continue;
    first.add(sending.peer, batch.key.tag, batch.envelope);
  }
  return first;
}

void Delivery::on_message(const Head& head, Wire::Arrival arrival) {
  ChannelState& channel = core_.channels.at(head.channel);
  if (!channel.is_sender(head.from, arrival.peer)) return faults_.fail_forged_sender(arrival.peer);
  IncomingMessage& message = new_message();
  message.envelope = head.envelope;
  message.key = {.tag = head.tag, .part = head.part};
  message.from = head.from;
  message.channel = &channel;
  message.announced = head.type == MessageType::kAnnounced;
  message.complete = arrival.whole && !message.announced;
  message.payload = std::move(arrival.payload);
  message.arrival.peer = arrival.peer;
  if (!arrival.whole) message.arrival = std::move(arrival);
  flow_.record_arrival(message);
  if (channel.faulty()) return drop(message);
  // If the channel is not joined yet, `on_matched` checks the sender later.
  channel.match_queue.match_posted(message) ? on_matched(channel, message)
                                            : check_unexpected(channel, message);
}

// A mismatched message is never received.
void Delivery::fail_mismatch(ChannelState& channel, IncomingMessage& message) {
  Batch& batch = *message.batch;
  const std::string cause = std::string(batch.name) + " on " + channel.name(channel.rank) + ": " +
                            MatchQueue::mismatch(message, channel.name(message.from));
  const std::uint64_t own = batch.envelope.signature, other = message.envelope.signature;
  if (!channel.is_isolated() && own != other)
    return faults_.compare_options(channel, {channel.rank, own, message.from, other}, cause);
  if (!channel.is_isolated()) return core_.actions.fail(*channel.domain, cause);
  channel.match_queue.remove(message);
  drop(message);
  end(channel, batch, std::make_exception_ptr(TransportError(cause)));
}

void Delivery::on_matched(ChannelState& channel, IncomingMessage& message) {
  if (!channel.is_sender(message.from, message.arrival.peer))
    return faults_.fail_forged_sender(message.arrival.peer);
  const Batch& batch = *message.batch;
  if (!MatchQueue::is_expected(message)) return fail_mismatch(channel, message);
  return_credits(message);
  if (message.complete) return deliver(channel, message);
  if (!message.announced) {
    if (!message.receiving) receive_rest(message);
    return wake_for(channel, batch);
  }
  // The message must not be used afterwards: the payload may arrive and be delivered at once.
  if (!std::exchange(message.requested, true))
    core_.actions.send(message.arrival.peer,
                       {.part = message.number, .type = MessageType::kRequest});
}

void Delivery::receive_rest(IncomingMessage& message) {
  message.receiving = true;
  BlockPool* preferred = message.batch == nullptr ? nullptr : message.batch->pool;
  if (!message.payload)
    message.payload = (preferred == nullptr ? core_.pool : *preferred).take(message.envelope.bytes);
  core_.actions.receive(message);
}

void Delivery::on_body(const Head& head, Wire::Arrival arrival) {
  IncomingMessage* message = flow_.take_body(arrival.peer, head.part, head.envelope.bytes);
  if (message == nullptr)
    return faults_.fail_all("rank " + std::to_string(arrival.peer) +
                            " sent a message without an announcement");
  message->payload = std::move(arrival.payload);
  message->arrival = std::move(arrival);
  if (message->arrival.whole) return on_payload(*message);
  receive_rest(*message);
  if (message->batch != nullptr) wake_for(*message->channel, *message->batch);
}

void Delivery::on_payload(IncomingMessage& message) {
  message.complete = true;
  if (message.channel == nullptr) return drop(message);
  if (message.incoming != nullptr) deliver(*message.channel, message);
}

void Delivery::deliver(ChannelState& channel, IncomingMessage& message) {
  channel.counters.received_bytes += core_.actions.wire_bytes(message.envelope.bytes);
  const Batch& batch = *message.batch;
  const bool was_receiving = message.receiving;
  if (channel.match_queue.deliver(message))
    core_.lock.signal(channel.event);
  else if (!was_receiving)
    wake_for(channel, batch);
  free_messages_.push_back(&message);
}

// Returns the credits of a message to the sender. A departed rank sends nothing and needs no
// credits.
void Delivery::return_credits(IncomingMessage& message) {
  const int peer = message.arrival.peer;
  const std::size_t credits = flow_.collect_credits(message);
  if (credits == 0 || faults_.ignores_arrivals() || faults_.has_left(peer)) return;
  if (core_.actions.may_send())
    core_.actions.send(peer, {.envelope = {.count = credits}, .type = MessageType::kCredits});
}

IncomingMessage& Delivery::new_message() {
  if (free_messages_.empty()) return messages_.emplace_back();
  IncomingMessage& message = *free_messages_.back();
  free_messages_.pop_back();
  message.receiving = message.requested = false;
  return message;
}

// A payload being received is dropped after its arrival.
void Delivery::drop(IncomingMessage& message) {
  message.payload = {};
  message.channel = nullptr;
  return_credits(message);
  if (!message.complete && (message.receiving || message.requested)) return;
  if (message.announced) flow_.remove_announcement(message);
  free_messages_.push_back(&message);
}

void Delivery::drop_unexpected(ChannelState& channel) {
  while (!channel.match_queue.unexpected().empty()) {
    IncomingMessage& message = *channel.match_queue.unexpected().back();
    channel.match_queue.remove(message);
    drop(message);
  }
}

// Wakes a sleeping thread if a batch closes before the thread's next poll.
void Delivery::wake_for(ChannelState& channel, const Batch& batch) {
  if (channel.next_poll == ChannelState::kAwake) return;
  const Clock::time_point closed = completion_time(batch);
  if (closed >= channel.next_poll) return;
  channel.next_poll = closed;
  core_.lock.signal(channel.event);
}

Clock::time_point Delivery::completion_time(const Batch& batch) const {
  Clock::time_point last = ChannelState::kAwake;
  for (const Incoming& incoming : batch.incoming) {
    if (incoming.arrived.load(std::memory_order_relaxed)) continue;
    if (incoming.ticket == nullptr) return Clock::time_point::max();
    const auto& message = *static_cast<const IncomingMessage*>(incoming.ticket);
    if (!message.receiving) return Clock::time_point::max();  // mismatched: never delivered
    last = std::max(last, core_.actions.earliest(message.arrival));
  }
  return last;
}

void Delivery::update_next_poll(ChannelState& channel) const {
  channel.next_poll = Clock::time_point::max();
  for (const Batch* batch : channel.match_queue.batches())
    channel.next_poll = std::min(channel.next_poll, completion_time(*batch));
}

}  // namespace tersor::host
