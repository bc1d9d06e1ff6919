// The messages of a world: sent, claimed by who waits for them, carried over the link, delivered.
#include <algorithm>

#include "comm/transport/inproc/world.h"

namespace tersor::inproc {
namespace {

std::size_t wire_bytes(const host::Envelope& envelope) { return sizeof(envelope) + envelope.bytes; }

}  // namespace

void World::post(Mailbox& box, host::Batch& batch, std::span<host::Block> payloads) {
  batch.open.store(static_cast<std::uint32_t>(batch.incoming.size()), std::memory_order_relaxed);
  Rings rings;
  const std::lock_guard lock(mutex_);
  if (faulty()) return;
  advance(rings);
  for (std::size_t index = 0; index < payloads.size(); ++index)
    send(box, batch, batch.outgoing[index], payloads[index], rings);
  if (batch.incoming.empty()) return;
  box.letters.open(batch);
  for (host::Incoming& slot : batch.incoming) seek_message(box, batch, slot, rings);
}

void World::send(Mailbox& box, const host::Batch& batch, const host::Outgoing& outgoing,
                 host::Block& payload, Rings& rings) {
  if (gone(*box.group, outgoing.peer))
    return raise_locked(std::string(batch.name) + " on " + box.group->name(box.rank) + ": " +
                            box.group->name(outgoing.peer) + " left",
                        rings);
  Message& message = take_message();
  message.envelope = batch.envelope;
  message.envelope.bytes = outgoing.payload.size();
  message.key = batch.key;
  message.to = &box.group->mailboxes[static_cast<std::size_t>(outgoing.peer)];
  message.from = box.rank;
  message.payload = std::move(payload);
  box.counters.sent_bytes += wire_bytes(message.envelope);
  ++box.counters.sent_messages;
  message.to->letters.claim(message);
  message.source = host_of(box.group->members[static_cast<std::size_t>(box.rank)]);
  message.destination = host_of(box.group->members[static_cast<std::size_t>(outgoing.peer)]);
  message.bytes = wire_bytes(message.envelope);
  if (!emulator_ || message.source == message.destination) return arrive(message, rings);
  emulator_->post(message, now());
  if (message.batch != nullptr) wake_for(*message.to, *message.batch, rings);
}

void World::seek_message(Mailbox& box, host::Batch& batch, host::Incoming& slot, Rings& rings) {
  host::Letter* letter = box.letters.seek(batch, slot);
  if (letter == nullptr) {
    if (gone(box, slot.peer)) check_abandoned(box, rings);
  } else if (letter->there) {
    deliver(static_cast<Message&>(*letter), rings);
  }
}

void World::advance(Rings& rings) {
  if (!emulator_) return;
  emulator_->advance(now(), [&](Packet& packet) { arrive(static_cast<Message&>(packet), rings); });
}

void World::arrive(Message& message, Rings& rings) {
  message.there = true;
  if (message.slot != nullptr) deliver(message, rings);
}

void World::deliver(Message& message, Rings& rings) {
  Mailbox& box = *message.to;
  if (!host::Letterbox::fits(message))
    return raise_locked(std::string(message.batch->name) + " on " + box.group->name(box.rank) +
                            ": " + host::Letterbox::misfit(message, box.group->name(message.from)),
                        rings);
  box.counters.received_bytes += wire_bytes(message.envelope);
  host::Batch& batch = *message.batch;
  if (box.letters.deliver(message))
    rings.add(box.bell);
  else if (message.source == message.destination)
    wake_for(box, batch, rings);  // nobody knew that this one would come now
  recycle(message);
}

void World::wake_for(Mailbox& box, const host::Batch& batch, Rings& rings) {
  if (box.asleep_until == -kNever) return;  // awake, or the world has no link
  const Seconds closed = completion(batch);
  if (closed >= box.asleep_until) return;
  box.asleep_until = closed;
  rings.add(box.bell);
}

Seconds World::completion(const host::Batch& batch) const {
  Seconds last = 0;
  for (const host::Incoming& slot : batch.incoming) {
    if (slot.arrived.load(std::memory_order_relaxed)) continue;
    if (slot.ticket == nullptr) return kNever;
    const auto& message =
        static_cast<const Message&>(*static_cast<const host::Letter*>(slot.ticket));
    last = std::max(last, emulator_->earliest_arrival(message));
  }
  return last;
}

Seconds World::next_completion(const Mailbox& box) const {
  Seconds first = kNever;
  for (const host::Batch* batch : box.letters.batches())
    first = std::min(first, completion(*batch));
  return first;
}

void World::cancel(Mailbox& box, host::Batch& batch) {
  const std::lock_guard lock(mutex_);
  box.letters.cancel(batch);
}

Message& World::take_message() {
  if (free_messages_.empty()) return messages_.emplace_back();
  Message& message = *free_messages_.back();
  free_messages_.pop_back();
  message = {};
  return message;
}

void World::recycle(Message& message) { free_messages_.push_back(&message); }

}  // namespace tersor::inproc
