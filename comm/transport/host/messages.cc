// Messages: send, match, receive and deliver.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "comm/transport/host/world.h"

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

Block World::in_block(ConstByteSpan bytes) {
  Block block = pools().host().take(bytes.size());
  if (!bytes.empty()) std::memcpy(block.writable().data(), bytes.data(), bytes.size());
  return block;
}

// Copies payloads into blocks if the wire needs blocks, without the lock. Consecutive sends of the
// same payload share a copy.
void World::pack(Batch& batch) {
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

void World::post(Box& box, Batch& batch) {
  wire_->check_thread();
  batch.open.store(static_cast<std::uint32_t>(batch.incoming.size()), std::memory_order_relaxed);
  pack(batch);
  const std::lock_guard lock(gate_);
  if (batch.incoming.empty()) poll();  // a send-only batch learns of departed ranks only here
  if (box.faulty()) return;
  if (batch.agreement != nullptr) box.agreements.note(batch.envelope.signature, *batch.agreement);
  check_room(box, batch);
  if (!batch.incoming.empty()) box.letters.open(batch);
  try {
    for (Outgoing& outgoing : batch.outgoing) send(box, batch, outgoing);
    for (const Outgoing& outgoing : batch.outgoing)
      if (!is_over(box, batch) && gone_from(box, outgoing.peer)) abandon(box, batch, outgoing.peer);
    for (Incoming& incoming : batch.incoming) seek_letter(box, batch, incoming);
    if (batch.takes_all) take_last(box, batch);
  } catch (const std::exception& error) {
    raise_all(error.what());
  }
}

bool World::is_over(const Box& box, const Batch& batch) {
  return box.faulty() || batch.error != nullptr;
}

void World::take_last(Box& box, const Batch& batch) {
  box.letters.note_last(batch);
  if (const Letter* letter = box.letters.unclaimed(batch.key)) check_stray(box, *letter);
}

// No later batch can receive this message: the sender calls something else. On isolated channels, a
// stray message ends nothing.
void World::check_stray(Box& box, const Letter& letter) {
  if (box.members.empty() || box.faulty()) return;  // not joined yet
  if (box.is_lifeline()) return;
  if (!is_sender(box, letter.from, letter.arrival.peer)) return refuse(letter.arrival.peer);
  const std::string what = box.letters.stray(letter, box.name(box.rank), box.name(letter.from));
  if (what.empty()) return;
  const std::uint64_t own = box.letters.last_signature(letter.key);
  if (own == letter.envelope.signature) return raise_locked(*box.family, what);
  dispute(box, {box.rank, own, letter.from, letter.envelope.signature}, what);
}

void World::send(int peer, Head head, Wire::Payload payload) {
  head.envelope.bytes = payload.bytes.size();
  wire_->send(peer, to_message_head(head), std::move(payload));
}

// Sends to each reachable rank, even if other ranks are gone.
void World::send(Box& box, Batch& batch, Outgoing& outgoing) {
  if (is_over(box, batch) || gone_from(box, outgoing.peer)) return;
  Head head = head_in(box, Kind::kMessage);
  head.envelope = batch.envelope;
  head.tag = batch.key.tag;
  head.part = batch.key.part;
  box.counters.sent_bytes += wire_->wire_bytes(outgoing.payload.size());
  ++box.counters.sent_messages;
  Wire::Payload payload{.bytes = outgoing.payload, .block = std::move(outgoing.block)};
  if (payload.block) payload.bytes = payload.block.bytes();
  const bool lent = !payload.block && payload.bytes.size() > traits_.copied_bytes;
  const int peer = box.member(outgoing.peer);
  const bool goes = flow(peer).run_ahead(unasked_cost(payload.bytes.size()));
  if (lent || must_leave(batch) || !goes) payload.job = count_send(box, batch, outgoing.peer);
  goes ? send(peer, head, std::move(payload)) : hold(peer, head, std::move(payload));
}

// A batch without receives must wait until its messages left, on wires without background progress.
// The caller may next wait for something else and never poll: copied messages to a peer that is
// still connecting, for example, would never leave.
bool World::must_leave(const Batch& batch) const {
  return batch.incoming.empty() && !moves_alone();
}

// Keeps the batch open until the payload has left. The network may read the owner's memory even
// after an error.
std::shared_ptr<Wire::Job> World::count_send(Box& box, Batch& batch, int peer) {
  auto job = std::make_shared<Wire::Job>();
  job->keep_alive = batch.keep_alive;
  job->done = [this, &box](const Wire::Job& done) {
    const auto send = sends_.extract(&done);
    if (send && box.letters.close_one(*send.mapped().batch)) gate_.ring(box.bell);
  };
  sends_[job.get()] = {&batch, &box, peer};
  batch.open.fetch_add(1, std::memory_order_relaxed);
  return job;
}

void World::seek_letter(Box& box, Batch& batch, Incoming& incoming) {
  if (is_over(box, batch)) return;
  if (Letter* letter = box.letters.seek(batch, incoming))
    paired(box, *letter);
  else if (gone(box, incoming.peer))
    check_abandoned(box);
}

void World::cancel(Box& box, Batch& batch) {
  const std::lock_guard lock(gate_);
  take_back(box, batch);
}

// Messages of the batch become available to other batches.
void World::take_back(Box& box, Batch& batch) {
  std::erase_if(sends_, [&](const auto& send) { return send.second.batch == &batch; });
  const std::vector<Letter*> taken = box.letters.cancel(batch);
  if (box.faulty()) return drop_unclaimed(box);
  for (Letter* letter : taken) paired(box, *letter);
}

std::vector<int> World::unsent(const Batch& batch) const {
  const std::lock_guard lock(gate_);
  std::vector<int> ranks;
  for (const auto& [job, sending] : sends_)
    if (sending.batch == &batch) ranks.push_back(sending.peer);
  return ranks;
}

void World::take(Wire::Arrival arrival) {
  if (deaf_) return;
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
    case Kind::kRoom:
      return flow(arrival.peer).take_room(head.envelope.count);
    case Kind::kFault:
      return hear_fault(head, arrival);
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
void World::take_later(Wire::Arrival arrival) {
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

void World::take_message(const Head& head, Wire::Arrival arrival) {
  Box& box = box_of(head.channel);
  if (!is_sender(box, head.from, arrival.peer)) return refuse(arrival.peer);
  Letter& letter = new_letter();
  letter.envelope = head.envelope;
  letter.key = {.tag = head.tag, .part = head.part};
  letter.from = head.from;
  letter.box = &box;
  letter.announced = head.kind == Kind::kAnnounced;
  letter.there = arrival.whole && !letter.announced;
  letter.payload = std::move(arrival.payload);
  letter.arrival.peer = arrival.peer;
  if (!arrival.whole) letter.arrival = std::move(arrival);
  if (letter.announced) {
    letter.number = flow(letter.arrival.peer).heard_of++;
    coming_[{letter.arrival.peer, letter.number}] = &letter;
  } else {
    letter.cost = unasked_cost(head.envelope.bytes);
  }
  if (box.faulty()) return drop(letter);
  box.letters.claim(letter) ? paired(box, letter) : check_stray(box, letter);
}

// If the channel is not joined yet, `paired` checks the sender later.
bool World::is_sender(const Box& box, int from, int peer) const {
  if (box.members.empty()) return true;
  const auto index = static_cast<std::size_t>(from);
  return index < box.members.size() && box.members[index] == peer;
}

void World::refuse(int peer) {
  raise_all("rank " + std::to_string(peer) + " sends in the name of another rank");
}

// A mismatched message is never received.
void World::fail_misfit(Box& box, Letter& letter) {
  Batch& batch = *letter.batch;
  const std::string cause = std::string(batch.name) + " on " + box.name(box.rank) + ": " +
                            Letterbox::misfit(letter, box.name(letter.from));
  const std::uint64_t own = batch.envelope.signature, other = letter.envelope.signature;
  if (!box.is_lifeline() && own != other)
    return dispute(box, {box.rank, own, letter.from, other}, cause);
  if (!box.is_lifeline()) return raise_locked(*box.family, cause);
  box.letters.reject(letter);
  drop(letter);
  end(box, batch, std::make_exception_ptr(TransportError(cause)));
}

void World::paired(Box& box, Letter& letter) {
  if (!is_sender(box, letter.from, letter.arrival.peer)) return refuse(letter.arrival.peer);
  const Batch& batch = *letter.batch;
  if (!Letterbox::fits(letter)) return fail_misfit(box, letter);
  make_room(letter);
  if (letter.there) return deliver(box, letter);
  if (letter.announced) return ask_for(letter);
  if (!letter.receiving) receive_rest(letter);
  wake_for(box, batch);
}

void World::receive_rest(Letter& letter) {
  letter.receiving = true;
  BlockPool* wish = letter.batch == nullptr ? nullptr : letter.batch->pool;
  if (!letter.payload)
    letter.payload = (wish == nullptr ? pools().host() : *wish).take(letter.envelope.bytes);
  auto job = std::make_shared<Wire::Job>();
  job->memory = letter.payload;
  job->done = [this, &letter](const Wire::Job&) {
    letter.there = true;
    came(letter);
  };
  wire_->receive_rest(letter.arrival, letter.payload.writable(), job);
}

void World::came(Letter& letter) {
  if (letter.box == nullptr) return drop(letter);
  if (letter.incoming != nullptr) deliver(*letter.box, letter);
}

void World::deliver(Box& box, Letter& letter) {
  box.counters.received_bytes += wire_->wire_bytes(letter.envelope.bytes);
  const Batch& batch = *letter.batch;
  const bool foreseen = letter.receiving;
  if (box.letters.deliver(letter))
    gate_.ring(box.bell);
  else if (!foreseen)
    wake_for(box, batch);
  state_->free_letters.push_back(&letter);
}

Letter& World::new_letter() {
  if (state_->free_letters.empty()) return state_->letters.emplace_back();
  Letter& letter = *state_->free_letters.back();
  state_->free_letters.pop_back();
  letter.receiving = letter.asked = false;
  return letter;
}

// A payload being received is dropped after its arrival.
void World::drop(Letter& letter) {
  letter.payload = {};
  letter.box = nullptr;
  make_room(letter);
  if (!letter.there && (letter.receiving || letter.asked)) return;
  if (letter.announced) coming_.erase({letter.arrival.peer, letter.number});
  state_->free_letters.push_back(&letter);
}

void World::drop_unclaimed(Box& box) {
  while (!box.letters.unclaimed().empty()) {
    Letter& letter = *box.letters.unclaimed().back();
    box.letters.reject(letter);
    drop(letter);
  }
}

// Wakes a sleeping thread if a batch closes before the thread's next poll.
void World::wake_for(Box& box, const Batch& batch) {
  if (box.asleep_until == Box::kAwake) return;
  const Clock::time_point closed = completion(batch);
  if (closed >= box.asleep_until) return;
  box.asleep_until = closed;
  gate_.ring(box.bell);
}

Clock::time_point World::completion(const Batch& batch) const {
  Clock::time_point last = Box::kAwake;
  for (const Incoming& incoming : batch.incoming) {
    if (incoming.arrived.load(std::memory_order_relaxed)) continue;
    if (incoming.ticket == nullptr) return Clock::time_point::max();
    const auto& letter = *static_cast<const Letter*>(incoming.ticket);
    if (!letter.receiving) return Clock::time_point::max();  // mismatched: never delivered
    last = std::max(last, wire_->earliest(letter.arrival));
  }
  return last;
}

Clock::time_point World::fall_asleep(Box& box) {
  const std::lock_guard lock(gate_);
  poll();
  box.asleep_until = Clock::time_point::max();
  for (const Batch* batch : box.letters.batches())
    box.asleep_until = std::min(box.asleep_until, completion(*batch));
  return box.asleep_until;
}

}  // namespace tersor::host
