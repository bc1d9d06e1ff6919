// The messages of a world: sent, claimed by who waits for them, received in whole, delivered.
#include <string>
#include <utility>

#include "comm/transport/processes/state.h"
#include "comm/transport/processes/world.h"

namespace tersor::processes {
namespace {

std::string text_of(const host::Block& payload) {
  return {reinterpret_cast<const char*>(payload.bytes().data()), payload.bytes().size()};
}

}  // namespace

Head World::head_of(const Box& box, Kind kind) const {
  Head head;
  head.channel = box.id;
  head.from = box.rank;
  head.kind = kind;
  return head;
}

void World::post(Box& box, host::Batch& batch) {
  wire_->check_thread();
  batch.open.store(static_cast<std::uint32_t>(batch.incoming.size()), std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  poll();  // who left should be known
  if (faulty()) return;
  if (!batch.incoming.empty()) box.letters.open(batch);
  try {
    for (const host::Outgoing& outgoing : batch.outgoing) send(box, batch, outgoing);
    for (host::Incoming& slot : batch.incoming) seek_letter(box, batch, slot);
  } catch (const std::exception& error) {
    raise_locked(error.what());
  }
}

void World::send(Box& box, host::Batch& batch, const host::Outgoing& outgoing) {
  if (faulty()) return;
  if (gone_from(box, outgoing.peer))
    return raise_locked(std::string(batch.name) + " on " + box.name(box.rank) + ": " +
                        box.name(outgoing.peer) + " left");
  Head head = head_of(box, Kind::kMessage);
  head.envelope = batch.envelope;
  head.tag = batch.key.tag;
  head.part = batch.key.part;
  box.counters.sent_bytes += wire_->wire_bytes(outgoing.payload.size());
  ++box.counters.sent_messages;
  const int peer = box.members[static_cast<std::size_t>(outgoing.peer)];
  if (outgoing.block) {
    wire_->send_block(peer, head, outgoing.block);
  } else if (batch.keep_alive != nullptr) {
    send_owned(box, batch, outgoing, head);
  } else {
    wire_->send(peer, head, outgoing.payload);
  }
}

// Straight from the owner's memory, which the network may read even after an error: the batch is
// closed only once that has left. Memory that nobody holds is copied.
void World::send_owned(Box& box, host::Batch& batch, const host::Outgoing& outgoing,
                       const Head& head) {
  auto job = std::make_shared<Job>();
  job->keep_alive = batch.keep_alive;
  job->done = [this, &box](Job& done) {
    if (done.batch != nullptr && box.letters.close_one(*done.batch)) box.bell.ring();
  };
  const int peer = box.members[static_cast<std::size_t>(outgoing.peer)];
  if (!wire_->send_from(peer, head, outgoing.payload, job)) return;
  job->batch = &batch;
  batch.open.fetch_add(1, std::memory_order_relaxed);
}

void World::seek_letter(Box& box, host::Batch& batch, host::Incoming& slot) {
  if (faulty()) return;
  if (host::Letter* letter = box.letters.seek(batch, slot))
    paired(box, static_cast<ProcessLetter&>(*letter));
  else if (gone(box, slot.peer))
    check_abandoned(box);
}

void World::cancel(Box& box, host::Batch& batch) {
  const std::lock_guard lock(mutex_);
  box.letters.cancel(batch);
  wire_->forget(batch);
}

void World::take(Arrival arrival) {
  if (faulty()) return;
  switch (arrival.head.kind) {
    case Kind::kMessage:
      return take_message(std::move(arrival));
    case Kind::kFault:
      return poison_locked(text_of(arrival.payload));
    case Kind::kLeave:
      return take_leave(arrival.head, arrival.peer);
    case Kind::kQuestion:
      return answer(arrival);
    case Kind::kAnswer:
      answers_[arrival.head.part] = static_cast<int>(arrival.head.envelope.count) - 1;
      return;
  }
}

void World::take_message(Arrival arrival) {
  Box& box = box_of(arrival.head.channel);
  ProcessLetter& letter = new_letter();
  letter.envelope = arrival.head.envelope;
  letter.key = {.tag = arrival.head.tag, .part = arrival.head.part};
  letter.from = arrival.head.from;
  letter.there = arrival.whole;
  letter.payload = std::move(arrival.payload);
  letter.arrival = std::move(arrival);
  if (box.letters.claim(letter)) paired(box, letter);
}

void World::answer(const Arrival& question) {
  Box& box = box_of(question.head.channel);
  Head head = head_of(box, Kind::kAnswer);
  head.part = question.head.part;
  head.envelope.count = static_cast<std::uint64_t>(box.letters.awaited(question.head.tag) + 1);
  wire_->send(question.peer, head, {});
}

// What does not fit is never received.
void World::paired(Box& box, ProcessLetter& letter) {
  if (!host::Letterbox::fits(letter))
    return raise_locked(std::string(letter.batch->name) + " on " + box.name(box.rank) + ": " +
                        host::Letterbox::misfit(letter, box.name(letter.from)));
  if (letter.there) return deliver(box, letter);
  if (!letter.receiving) receive_rest(box, letter);
}

void World::receive_rest(Box& box, ProcessLetter& letter) {
  letter.receiving = true;
  host::BlockPool* wish = letter.batch->pool;
  letter.payload = (wish == nullptr ? state_->pools.host() : *wish).take(letter.envelope.bytes);
  auto job = std::make_shared<Job>();
  job->memory = letter.payload;
  job->done = [this, &box, &letter](Job&) {
    letter.there = true;
    if (letter.slot != nullptr) deliver(box, letter);
  };
  wire_->receive_rest(letter.arrival, job->memory.writable(), job);
}

void World::deliver(Box& box, ProcessLetter& letter) {
  box.counters.received_bytes += wire_->wire_bytes(letter.envelope.bytes);
  if (box.letters.deliver(letter)) box.bell.ring();
  state_->free_letters.push_back(&letter);
}

ProcessLetter& World::new_letter() {
  if (state_->free_letters.empty()) return state_->letters.emplace_back();
  ProcessLetter& letter = *state_->free_letters.back();
  state_->free_letters.pop_back();
  letter = {};
  return letter;
}

}  // namespace tersor::processes
