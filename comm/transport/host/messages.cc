// Messages: send, match, receive and deliver.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "comm/transport/host/progress_engine.h"

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

bool same_memory(ConstByteSpan one, ConstByteSpan other) {
  return one.data() == other.data() && one.size() == other.size();
}

}  // namespace

Block ProgressEngine::in_block(ConstByteSpan bytes) {
  Block block = pools().host().take(bytes.size());
  if (!bytes.empty()) std::memcpy(block.writable().data(), bytes.data(), bytes.size());
  return block;
}

// Copies payloads into blocks if the wire needs blocks, without the lock. Consecutive sends of the
// same payload share a copy.
void ProgressEngine::pack(Batch& batch) {
  if (traits_.sends_in_place && batch.keep_alive != nullptr) return;
  const Outgoing* before = nullptr;
  for (Outgoing& outgoing : batch.outgoing) {
    if (outgoing.block || outgoing.payload.size() <= traits_.copied_bytes) continue;
    outgoing.block = part_of(batch.block, outgoing.payload);
    if (outgoing.block) continue;
    const bool again = before != nullptr && same_memory(before->payload, outgoing.payload);
    outgoing.block = again ? before->block : in_block(outgoing.payload);
    before = &outgoing;
  }
}

void ProgressEngine::post(ChannelState& channel, Batch& batch) {
  wire_->check_thread();
  batch.open.store(static_cast<std::uint32_t>(batch.incoming.size()), std::memory_order_relaxed);
  pack(batch);
  const std::lock_guard lock(shared_lock_);
  if (batch.incoming.empty()) poll();  // a send-only batch learns of departed ranks only here
  if (channel.faulty()) return;
  if (batch.agreement != nullptr)
    channel.agreements.note(batch.envelope.signature, *batch.agreement);
  check_announced(channel, batch);
  if (!batch.incoming.empty()) channel.match_queue.open(batch);
  try {
    for (Outgoing& outgoing : batch.outgoing) send(channel, batch, outgoing);
    for (const Outgoing& outgoing : batch.outgoing)
      if (!is_over(channel, batch) && gone_from(channel, outgoing.peer))
        abandon(channel, batch, outgoing.peer);
    for (Incoming& incoming : batch.incoming) match_receive(channel, batch, incoming);
    if (batch.takes_all) take_last(channel, batch);
  } catch (const std::exception& error) {
    raise_all(error.what());
  }
}

bool ProgressEngine::is_over(const ChannelState& channel, const Batch& batch) {
  return channel.faulty() || batch.error != nullptr;
}

void ProgressEngine::take_last(ChannelState& channel, const Batch& batch) {
  channel.match_queue.record_last(batch);
  if (const IncomingMessage* message = channel.match_queue.unclaimed(batch.key))
    check_stray(channel, *message);
}

// No later batch can receive this message: the sender calls something else. On isolated channels, a
// stray message ends nothing.
void ProgressEngine::check_stray(ChannelState& channel, const IncomingMessage& message) {
  if (channel.members.empty() || channel.faulty()) return;  // not joined yet
  if (channel.is_isolated()) return;
  if (!is_sender(channel, message.from, message.arrival.peer)) return refuse(message.arrival.peer);
  const std::string what =
      channel.match_queue.stray(message, channel.name(channel.rank), channel.name(message.from));
  if (what.empty()) return;
  const std::uint64_t own = channel.match_queue.last_signature(message.key);
  if (own == message.envelope.signature) return raise_locked(*channel.domain, what);
  dispute(channel, {channel.rank, own, message.from, message.envelope.signature}, what);
}

void ProgressEngine::send(int peer, Head head, Wire::Payload payload) {
  head.envelope.bytes = payload.bytes.size();
  wire_->send(peer, to_message_head(head), std::move(payload));
}

// Sends to each reachable rank, even if other ranks are gone.
void ProgressEngine::send(ChannelState& channel, Batch& batch, Outgoing& outgoing) {
  if (is_over(channel, batch) || gone_from(channel, outgoing.peer)) return;
  Head head = head_in(channel, Kind::kMessage);
  head.envelope = batch.envelope;
  head.tag = batch.key.tag;
  head.part = batch.key.part;
  channel.counters.sent_bytes += wire_->wire_bytes(outgoing.payload.size());
  ++channel.counters.sent_messages;
  Wire::Payload payload{.bytes = outgoing.payload, .block = std::move(outgoing.block)};
  if (payload.block) payload.bytes = payload.block.bytes();
  const bool borrowed = !payload.block && payload.bytes.size() > traits_.copied_bytes;
  const int peer = channel.member(outgoing.peer);
  const bool goes = flow(peer).send_eagerly(eager_cost(payload.bytes.size()));
  if (borrowed || must_leave(batch) || !goes)
    payload.job = count_send(channel, batch, outgoing.peer);
  goes ? send(peer, head, std::move(payload)) : hold(peer, head, std::move(payload));
}

// A batch without receives must wait until its messages left, on wires without background progress.
// The caller may next wait for something else and never poll: copied messages to a peer that is
// still connecting, for example, would never leave.
bool ProgressEngine::must_leave(const Batch& batch) const {
  return batch.incoming.empty() && !moves_alone();
}

// Keeps the batch open until the payload has left. The network may read the owner's memory even
// after an error.
std::shared_ptr<Wire::Job> ProgressEngine::count_send(ChannelState& channel, Batch& batch,
                                                      int peer) {
  auto job = std::make_shared<Wire::Job>();
  job->keep_alive = batch.keep_alive;
  job->done = [this, &channel](const Wire::Job& done) {
    const auto send = sends_.extract(&done);
    if (send && channel.match_queue.close_one(*send.mapped().batch))
      shared_lock_.signal(channel.event);
  };
  sends_[job.get()] = {&batch, &channel, peer};
  batch.open.fetch_add(1, std::memory_order_relaxed);
  return job;
}

void ProgressEngine::match_receive(ChannelState& channel, Batch& batch, Incoming& incoming) {
  if (is_over(channel, batch)) return;
  if (IncomingMessage* message = channel.match_queue.seek(batch, incoming))
    paired(channel, *message);
  else if (gone(channel, incoming.peer))
    check_abandoned(channel);
}

void ProgressEngine::cancel(ChannelState& channel, Batch& batch) {
  const std::lock_guard lock(shared_lock_);
  take_back(channel, batch);
}

// After this call, the network reads no memory of the batch. Received messages of the batch become
// available to other batches.
void ProgressEngine::take_back(ChannelState& channel, Batch& batch) {
  keep_held(batch);
  for (auto send = sends_.begin(); send != sends_.end();) {
    const auto& [job, outstanding] = *send;
    const bool ends = outstanding.batch == &batch;
    if (ends) wire_->keep(channel.member(outstanding.peer), job);
    send = ends ? sends_.erase(send) : std::next(send);
  }
  const std::vector<IncomingMessage*> taken = channel.match_queue.cancel(batch);
  if (channel.faulty()) return drop_unclaimed(channel);
  for (IncomingMessage* message : taken) paired(channel, *message);
}

std::vector<int> ProgressEngine::unsent(const Batch& batch) const {
  const std::lock_guard lock(shared_lock_);
  std::vector<int> ranks;
  for (const auto& [job, sending] : sends_)
    if (sending.batch == &batch) ranks.push_back(sending.peer);
  return ranks;
}

void ProgressEngine::take(Wire::Arrival arrival) {
  if (ignores_arrivals_) return;
  const Head head = head_of(arrival.head);
  if (!arrival.whole && (head.kind == Kind::kFault || head.kind == Kind::kOptions))
    return take_later(std::move(arrival));
  switch (head.kind) {
    case Kind::kMessage:
    case Kind::kAnnounced:
      return take_message(head, std::move(arrival));
    case Kind::kRequest:
      return take_request(head, arrival.peer);
    case Kind::kBody:
      return take_body(head, std::move(arrival));
    case Kind::kCredits:
      return flow(arrival.peer).take_credits(head.envelope.count);
    case Kind::kFault:
      return take_fault(head, arrival);
    case Kind::kLeave:
      return take_leave(head, arrival.peer);
    case Kind::kQuestion:
      return take_question(head, arrival.peer);
    case Kind::kAnswer:
      return take_answer(head, arrival.payload.bytes());
    case Kind::kOptions:
      return take_options(head, arrival);
    case Kind::kCompare:
      return take_comparison(head, arrival);
  }
}

// A long message about a fault: its payload comes by itself.
void ProgressEngine::take_later(Wire::Arrival arrival) {
  const auto late = std::make_shared<Wire::Arrival>(std::move(arrival));
  if (!late->payload) late->payload = pools().host().take(late->head.payload_bytes());
  auto job = std::make_shared<Wire::Job>();
  job->memory = late->payload;
  job->done = [this, late](const Wire::Job&) {
    late->whole = true;
    take(std::move(*late));
  };
  wire_->receive_rest(*late, late->payload.writable(), job);
}

void ProgressEngine::take_message(const Head& head, Wire::Arrival arrival) {
  ChannelState& channel = channel_of(head.channel);
  if (!is_sender(channel, head.from, arrival.peer)) return refuse(arrival.peer);
  IncomingMessage& message = new_message();
  message.envelope = head.envelope;
  message.key = {.tag = head.tag, .part = head.part};
  message.from = head.from;
  message.channel = &channel;
  message.announced = head.kind == Kind::kAnnounced;
  message.there = arrival.whole && !message.announced;
  message.payload = std::move(arrival.payload);
  message.arrival.peer = arrival.peer;
  if (!arrival.whole) message.arrival = std::move(arrival);
  if (message.announced) {
    message.number = flow(message.arrival.peer).announced_by_peer++;
    coming_[{message.arrival.peer, message.number}] = &message;
  } else {
    message.cost = eager_cost(head.envelope.bytes);
  }
  if (channel.faulty()) return drop(message);
  channel.match_queue.claim(message) ? paired(channel, message) : check_stray(channel, message);
}

// If the channel is not joined yet, `paired` checks the sender later.
bool ProgressEngine::is_sender(const ChannelState& channel, int from, int peer) const {
  if (channel.members.empty()) return true;
  const auto index = static_cast<std::size_t>(from);
  return index < channel.members.size() && channel.members[index] == peer;
}

void ProgressEngine::refuse(int peer) {
  raise_all("rank " + std::to_string(peer) + " sends in the name of another rank");
}

// A mismatched message is never received.
void ProgressEngine::fail_misfit(ChannelState& channel, IncomingMessage& message) {
  Batch& batch = *message.batch;
  const std::string cause = std::string(batch.name) + " on " + channel.name(channel.rank) + ": " +
                            MatchQueue::misfit(message, channel.name(message.from));
  const std::uint64_t own = batch.envelope.signature, other = message.envelope.signature;
  if (!channel.is_isolated() && own != other)
    return dispute(channel, {channel.rank, own, message.from, other}, cause);
  if (!channel.is_isolated()) return raise_locked(*channel.domain, cause);
  channel.match_queue.reject(message);
  drop(message);
  end(channel, batch, std::make_exception_ptr(TransportError(cause)));
}

void ProgressEngine::paired(ChannelState& channel, IncomingMessage& message) {
  if (!is_sender(channel, message.from, message.arrival.peer)) return refuse(message.arrival.peer);
  const Batch& batch = *message.batch;
  if (!MatchQueue::fits(message)) return fail_misfit(channel, message);
  return_credits(message);
  if (message.there) return deliver(channel, message);
  if (message.announced) return request(message);
  if (!message.receiving) receive_rest(message);
  wake_for(channel, batch);
}

void ProgressEngine::receive_rest(IncomingMessage& message) {
  message.receiving = true;
  BlockPool* wish = message.batch == nullptr ? nullptr : message.batch->pool;
  if (!message.payload)
    message.payload = (wish == nullptr ? pools().host() : *wish).take(message.envelope.bytes);
  auto job = std::make_shared<Wire::Job>();
  job->memory = message.payload;
  job->done = [this, &message](const Wire::Job&) {
    message.there = true;
    came(message);
  };
  wire_->receive_rest(message.arrival, message.payload.writable(), job);
}

void ProgressEngine::came(IncomingMessage& message) {
  if (message.channel == nullptr) return drop(message);
  if (message.incoming != nullptr) deliver(*message.channel, message);
}

void ProgressEngine::deliver(ChannelState& channel, IncomingMessage& message) {
  channel.counters.received_bytes += wire_->wire_bytes(message.envelope.bytes);
  const Batch& batch = *message.batch;
  const bool foreseen = message.receiving;
  if (channel.match_queue.deliver(message))
    shared_lock_.signal(channel.event);
  else if (!foreseen)
    wake_for(channel, batch);
  state_->free_messages.push_back(&message);
}

IncomingMessage& ProgressEngine::new_message() {
  if (state_->free_messages.empty()) return state_->messages.emplace_back();
  IncomingMessage& message = *state_->free_messages.back();
  state_->free_messages.pop_back();
  message.receiving = message.asked = false;
  return message;
}

// A payload being received is dropped after its arrival.
void ProgressEngine::drop(IncomingMessage& message) {
  message.payload = {};
  message.channel = nullptr;
  return_credits(message);
  if (!message.there && (message.receiving || message.asked)) return;
  if (message.announced) coming_.erase({message.arrival.peer, message.number});
  state_->free_messages.push_back(&message);
}

void ProgressEngine::drop_unclaimed(ChannelState& channel) {
  while (!channel.match_queue.unclaimed().empty()) {
    IncomingMessage& message = *channel.match_queue.unclaimed().back();
    channel.match_queue.reject(message);
    drop(message);
  }
}

// Wakes a sleeping thread if a batch closes before the thread's next poll.
void ProgressEngine::wake_for(ChannelState& channel, const Batch& batch) {
  if (channel.asleep_until == ChannelState::kAwake) return;
  const Clock::time_point closed = completion(batch);
  if (closed >= channel.asleep_until) return;
  channel.asleep_until = closed;
  shared_lock_.signal(channel.event);
}

Clock::time_point ProgressEngine::completion(const Batch& batch) const {
  Clock::time_point last = ChannelState::kAwake;
  for (const Incoming& incoming : batch.incoming) {
    if (incoming.arrived.load(std::memory_order_relaxed)) continue;
    if (incoming.ticket == nullptr) return Clock::time_point::max();
    const auto& message = *static_cast<const IncomingMessage*>(incoming.ticket);
    if (!message.receiving) return Clock::time_point::max();  // mismatched: never delivered
    last = std::max(last, wire_->earliest(message.arrival));
  }
  return last;
}

Clock::time_point ProgressEngine::fall_asleep(ChannelState& channel) {
  const std::lock_guard lock(shared_lock_);
  poll();
  channel.asleep_until = Clock::time_point::max();
  for (const Batch* batch : channel.match_queue.batches())
    channel.asleep_until = std::min(channel.asleep_until, completion(*batch));
  return channel.asleep_until;
}

}  // namespace tersor::host
