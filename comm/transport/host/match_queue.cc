#include "comm/transport/host/match_queue.h"

#include <algorithm>

namespace tersor::host {
namespace {

void attach(IncomingMessage& message, Batch& batch, Incoming& incoming) {
  message.batch = &batch;
  message.incoming = &incoming;
  incoming.ticket = &message;
}

void detach(IncomingMessage& message) {
  message.incoming->ticket = nullptr;
  message.batch = nullptr;
  message.incoming = nullptr;
}

Expectation expectation_of(const IncomingMessage& message) {
  return {message.batch->envelope, message.incoming->min_bytes, message.incoming->capacity};
}

}  // namespace

bool MatchQueue::find_batch(IncomingMessage& message) {
  for (Batch* batch : posted_) {
    if (!(batch->key == message.key)) continue;
    for (Incoming& incoming : batch->incoming) {
      if (!accepts(incoming, message.from)) continue;
      attach(message, *batch, incoming);
      return true;
    }
  }
  return false;
}

bool MatchQueue::match_posted(IncomingMessage& message) {
  if (find_batch(message)) return true;
  unexpected_.push_back(&message);
  return false;
}

IncomingMessage* MatchQueue::match_unexpected(Batch& batch, Incoming& incoming) {
  const auto found =
      std::find_if(unexpected_.begin(), unexpected_.end(), [&](const IncomingMessage* message) {
        return message->key == batch.key && accepts(incoming, message->from);
      });
  if (found == unexpected_.end()) return nullptr;
  IncomingMessage* message = *found;
  unexpected_.erase(found);
  attach(*message, batch, incoming);
  return message;
}

void MatchQueue::record_last(const Batch& batch) {
  LastCall& call = last_calls_[batch.key.tag % kRememberedCalls];
  call.any = true;
  call.key = batch.key;
  call.envelope = batch.envelope;
  call.name = batch.name;
}

std::string MatchQueue::unexpected_text(const IncomingMessage& message, std::string_view rank,
                                        std::string_view sender) const {
  const LastCall& call = last_calls_[message.key.tag % kRememberedCalls];
  if (!call.any || !(call.key == message.key)) return {};
  return call.name + " on " + std::string(rank) + ": " +
         difference(call.envelope, message.envelope, sender, call.name);
}

const IncomingMessage* MatchQueue::unexpected(const MessageKey& key) const {
  const auto found = std::ranges::find(unexpected_, key, &IncomingMessage::key);
  return found == unexpected_.end() ? nullptr : *found;
}

// Messages of the canceled batch go to the front, because they were sent before all unexpected
// messages. Later messages for this batch belong to a valid call and are no mismatch.
std::vector<IncomingMessage*> MatchQueue::cancel(Batch& batch) {
  std::erase(posted_, &batch);
  LastCall& call = last_calls_[batch.key.tag % kRememberedCalls];
  if (call.key == batch.key) call.any = false;
  std::vector<IncomingMessage*> matched, unmatched;
  for (Incoming& incoming : batch.incoming) {
    if (incoming.ticket == nullptr) continue;
    IncomingMessage& message = *static_cast<IncomingMessage*>(incoming.ticket);
    detach(message);
    (find_batch(message) ? matched : unmatched).push_back(&message);
  }
  unexpected_.insert(unexpected_.begin(), unmatched.begin(), unmatched.end());
  return matched;
}

void MatchQueue::remove(IncomingMessage& message) {
  if (message.incoming != nullptr) detach(message);
  std::erase(unexpected_, &message);
}

bool MatchQueue::is_expected(const IncomingMessage& message) {
  return matches(expectation_of(message), message.envelope);
}

std::string MatchQueue::mismatch(const IncomingMessage& message, std::string_view sender) {
  return mismatch_text(expectation_of(message), message.envelope, sender, message.batch->name);
}

bool MatchQueue::deliver(IncomingMessage& message) {
  Batch& batch = *message.batch;
  Incoming& incoming = *message.incoming;
  incoming.source = message.from;
  incoming.payload = std::move(message.payload);
  detach(message);
  incoming.arrived.store(true, std::memory_order_release);
  return close_one(batch);
}

bool MatchQueue::close_one(Batch& batch) {
  const bool last = batch.open.load(std::memory_order_relaxed) == 1;
  if (last) std::erase(posted_, &batch);
  batch.open.fetch_sub(1, std::memory_order_release);
  return last;
}

Awaited MatchQueue::awaited(std::uint32_t tag) const {
  Awaited first;
  for (const Batch* batch : posted_) {
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
