#include "comm/transport/host/letterbox.h"

#include <algorithm>

namespace tersor::host {
namespace {

void pair(Letter& letter, Batch& batch, Incoming& incoming) {
  letter.batch = &batch;
  letter.incoming = &incoming;
  incoming.ticket = &letter;
}

void part(Letter& letter) {
  letter.incoming->ticket = nullptr;
  letter.batch = nullptr;
  letter.incoming = nullptr;
}

Expectation expectation_of(const Letter& letter) {
  return {letter.batch->envelope, letter.incoming->least_bytes, letter.incoming->capacity};
}

}  // namespace

bool Letterbox::find_batch(Letter& letter) {
  for (Batch* batch : open_) {
    if (!(batch->key == letter.key)) continue;
    for (Incoming& incoming : batch->incoming) {
      if (!waits_for(incoming, letter.from)) continue;
      pair(letter, *batch, incoming);
      return true;
    }
  }
  return false;
}

bool Letterbox::claim(Letter& letter) {
  if (find_batch(letter)) return true;
  unclaimed_.push_back(&letter);
  return false;
}

Letter* Letterbox::seek(Batch& batch, Incoming& incoming) {
  const auto found = std::find_if(unclaimed_.begin(), unclaimed_.end(), [&](const Letter* letter) {
    return letter->key == batch.key && waits_for(incoming, letter->from);
  });
  if (found == unclaimed_.end()) return nullptr;
  Letter* letter = *found;
  unclaimed_.erase(found);
  pair(*letter, batch, incoming);
  return letter;
}

void Letterbox::note_last(const Batch& batch) {
  Begun& begun = begun_[batch.key.tag % kRemembered];
  begun.any = true;
  begun.key = batch.key;
  begun.envelope = batch.envelope;
  begun.name = batch.name;
}

std::string Letterbox::stray(const Letter& letter, std::string_view rank,
                             std::string_view sender) const {
  const Begun& begun = begun_[letter.key.tag % kRemembered];
  if (!begun.any || !(begun.key == letter.key)) return {};
  return begun.name + " on " + std::string(rank) + ": " +
         difference(begun.envelope, letter.envelope, sender, begun.name);
}

const Letter* Letterbox::unclaimed(const MessageKey& key) const {
  const auto found = std::ranges::find(unclaimed_, key, &Letter::key);
  return found == unclaimed_.end() ? nullptr : *found;
}

// Messages of the canceled batch go to the front, because they were sent before all unexpected
// messages. Later messages for this batch belong to a valid call and are no mismatch.
std::vector<Letter*> Letterbox::cancel(Batch& batch) {
  std::erase(open_, &batch);
  Begun& begun = begun_[batch.key.tag % kRemembered];
  if (begun.key == batch.key) begun.any = false;
  std::vector<Letter*> taken, left;
  for (Incoming& incoming : batch.incoming) {
    if (incoming.ticket == nullptr) continue;
    Letter& letter = *static_cast<Letter*>(incoming.ticket);
    part(letter);
    (find_batch(letter) ? taken : left).push_back(&letter);
  }
  unclaimed_.insert(unclaimed_.begin(), left.begin(), left.end());
  return taken;
}

void Letterbox::reject(Letter& letter) {
  if (letter.incoming != nullptr) part(letter);
  std::erase(unclaimed_, &letter);
}

bool Letterbox::fits(const Letter& letter) {
  return agrees(expectation_of(letter), letter.envelope);
}

std::string Letterbox::misfit(const Letter& letter, std::string_view sender) {
  return disagreement(expectation_of(letter), letter.envelope, sender, letter.batch->name);
}

bool Letterbox::deliver(Letter& letter) {
  Batch& batch = *letter.batch;
  Incoming& incoming = *letter.incoming;
  incoming.source = letter.from;
  incoming.payload = std::move(letter.payload);
  part(letter);
  incoming.arrived.store(true, std::memory_order_release);
  return close_one(batch);
}

bool Letterbox::close_one(Batch& batch) {
  const bool last = batch.open.load(std::memory_order_relaxed) == 1;
  if (last) std::erase(open_, &batch);
  batch.open.fetch_sub(1, std::memory_order_release);
  return last;
}

Awaited Letterbox::awaited(std::uint32_t tag) const {
  Awaited first;
  for (const Batch* batch : open_) {
    const std::uint32_t own = batch->key.tag;
    if (own > tag && own != kUnorderedTag) continue;
    for (const Incoming& incoming : batch->incoming) {
      if (incoming.arrived.load(std::memory_order_relaxed)) continue;
      const auto* letter = static_cast<const Letter*>(incoming.ticket);  // partially received
      const int from = letter != nullptr ? letter->from : incoming.peer;
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
