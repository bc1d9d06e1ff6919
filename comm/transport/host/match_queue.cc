#include "comm/transport/host/match_queue.h"

#include <algorithm>

namespace tersor::host {
namespace {

void pair(IncomingMessage& message, Batch& batch, Incoming& incoming) {
  message.batch = &batch;
  message.incoming = &incoming;
  incoming.ticket = &message;
}

void part(IncomingMessage& message) {
  message.incoming->ticket = nullptr;
  message.batch = nullptr;
  message.incoming = nullptr;
}

Expectation expectation_of(const IncomingMessage& message) {
  return {message.batch->envelope, message.incoming->least_bytes, message.incoming->capacity};
}

}  // namespace

bool MatchQueue::find_batch(IncomingMessage& message) {
  for (Batch* batch : open_) {
    if (!(batch->key == message.key)) continue;
    for (Incoming& incoming : batch->incoming) {
      if (!waits_for(incoming, message.from)) continue;
      pair(message, *batch, incoming);
      return true;
    }
  }
  return false;
}

bool MatchQueue::claim(IncomingMessage& message) {
  if (find_batch(message)) return true;
  unclaimed_.push_back(&message);
  return false;
}

IncomingMessage* MatchQueue::seek(Batch& batch, Incoming& incoming) {
  const auto found =
      std::find_if(unclaimed_.begin(), unclaimed_.end(), [&](const IncomingMessage* message) {
        return message->key == batch.key && waits_for(incoming, message->from);
      });
  if (found == unclaimed_.end()) return nullptr;
  IncomingMessage* message = *found;
  unclaimed_.erase(found);
  pair(*message, batch, incoming);
  return message;
}

void MatchQueue::record_last(const Batch& batch) {
  Begun& begun = begun_[batch.key.tag % kRemembered];
  begun.any = true;
  begun.key = batch.key;
  begun.envelope = batch.envelope;
  begun.name = batch.name;
}

std::string MatchQueue::stray(const IncomingMessage& message, std::string_view rank,
                              std::string_view sender) const {
  const Begun& begun = begun_[message.key.tag % kRemembered];
  if (!begun.any || !(begun.key == message.key)) return {};
  return begun.name + " on " + std::string(rank) + ": " +
         difference(begun.envelope, message.envelope, sender, begun.name);
}

const IncomingMessage* MatchQueue::unclaimed(const MessageKey& key) const {
  const auto found = std::ranges::find(unclaimed_, key, &IncomingMessage::key);
  return found == unclaimed_.end() ? nullptr : *found;
}

// Messages of the canceled batch go to the front, because they were sent before all unexpected
// messages. Later messages for this batch belong to a valid call and are no mismatch.
std::vector<IncomingMessage*> MatchQueue::cancel(Batch& batch) {
  std::erase(open_, &batch);
  Begun& begun = begun_[batch.key.tag % kRemembered];
  if (begun.key == batch.key) begun.any = false;
  std::vector<IncomingMessage*> taken, left;
  for (Incoming& incoming : batch.incoming) {
    if (incoming.ticket == nullptr) continue;
    IncomingMessage& message = *static_cast<IncomingMessage*>(incoming.ticket);
    part(message);
    (find_batch(message) ? taken : left).push_back(&message);
  }
  unclaimed_.insert(unclaimed_.begin(), left.begin(), left.end());
  return taken;
}

void MatchQueue::reject(IncomingMessage& message) {
  if (message.incoming != nullptr) part(message);
  std::erase(unclaimed_, &message);
}

bool MatchQueue::fits(const IncomingMessage& message) {
  return agrees(expectation_of(message), message.envelope);
}

std::string MatchQueue::misfit(const IncomingMessage& message, std::string_view sender) {
  return disagreement(expectation_of(message), message.envelope, sender, message.batch->name);
}

bool MatchQueue::deliver(IncomingMessage& message) {
  Batch& batch = *message.batch;
  Incoming& incoming = *message.incoming;
  incoming.source = message.from;
  incoming.payload = std::move(message.payload);
  part(message);
  incoming.arrived.store(true, std::memory_order_release);
  return close_one(batch);
}

bool MatchQueue::close_one(Batch& batch) {
  const bool last = batch.open.load(std::memory_order_relaxed) == 1;
  if (last) std::erase(open_, &batch);
  batch.open.fetch_sub(1, std::memory_order_release);
  return last;
}

Awaited MatchQueue::awaited(std::uint32_t tag) const {
  Awaited first;
  for (const Batch* batch : open_) {
    const std::uint32_t own = batch->key.tag;
    if (own > tag && own != kUnorderedTag) continue;
    for (const Incoming& incoming : batch->incoming) {
      if (incoming.arrived.load(std::memory_order_relaxed)) continue;
      const auto* message =
          static_cast<const IncomingMessage*>(incoming.ticket);  // partially received
      const int from = message != nullptr ? message->from : incoming.peer;
      if (from != kAnyRank) first.add(from, own, batch->envelope);
    }
  }
  return first;
}

void Awaited::add(int rank, std::uint32_t of, const Envelope& call) {
  if (of > tag) return;
  if (of < tag) ranks.clear();
  tag = of;
  envelope = call;
  if (std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
}

std::string rank_name(int rank, int world_rank, bool whole) {
  const std::string text = "rank " + std::to_string(rank);
  return whole ? text : text + " of the split (" + std::to_string(world_rank) + " of all)";
}

}  // namespace tersor::host
