// Flow control (flow.h): announced messages waiting for a request, and credits.
#include <string>
#include <utility>

#include "comm/transport/host/world.h"

namespace tersor::host {

// Announcements use memory of the peer, too.
void World::check_room(const Box& box, const Batch& batch) const {
  for (const Outgoing& outgoing : batch.outgoing) {
    const int peer = box.member(outgoing.peer);
    if (flow(peer).waiting < Flow::kMostWaiting) continue;
    throw InvalidArgument(std::string(batch.name) + " on " + box.name(box.rank) + ": " +
                          std::to_string(Flow::kMostWaiting) + " messages to " +
                          box.name(outgoing.peer) +
                          " wait until it takes them: wait for their handles first");
  }
}

// Stores the message before sending the announcement, because the request may arrive immediately.
void World::hold(int peer, Head head, Wire::Payload payload) {
  if (!payload.block && payload.job->keep_alive == nullptr) {
    payload.block = in_block(payload.bytes);
    payload.bytes = payload.block.bytes();
  }
  head.kind = Kind::kAnnounced;
  head.envelope.bytes = payload.bytes.size();
  ++flow(peer).waiting;
  held_[{peer, flow(peer).announced++}] = {head.channel, std::move(payload)};
  wire_->send(peer, to_message_head(head), {});
}

void World::take_request(const Head& head, int peer) {
  auto found = held_.extract({peer, head.part});
  if (!found) return;
  --flow(peer).waiting;
  send(peer, {.part = head.part, .kind = Kind::kBody}, std::move(found.mapped().payload));
}

// Drops messages announced to world rank `peer`. The peer left the channel `box` or, if null, all
// channels. The operation may have failed and be gone.
void World::drop_held(int peer, const Box* box) {
  for (auto held = held_.lower_bound({peer, 0});
       held != held_.end() && held->first.first == peer;) {
    if (box != nullptr && held->second.channel != box->id) {
      ++held;
      continue;
    }
    const auto [number, dropped] = *held;
    held = held_.erase(held);
    --flow(peer).waiting;
    const auto sending = sends_.find(dropped.payload.job.get());
    if (sending == sends_.end()) continue;
    const Outstanding late = sending->second;
    if (gone_from(*late.box, late.peer)) abandon(*late.box, *late.batch, late.peer);
    held = held_.upper_bound(number);
  }
}

// Drops the announcements of a lost rank. A receive matched with a dropped message waits for
// another message or fails.
void World::drop_announced(int peer) {
  std::vector<Letter*> letters;
  for (const auto& [number, letter] : coming_)
    if (number.first == peer) letters.push_back(letter);
  for (Letter* letter : letters) {
    Box* const box = letter->box;
    Batch* const batch = letter->batch;
    Incoming* const incoming = letter->incoming;
    if (box != nullptr) box->letters.reject(*letter);
    letter->asked = false;  // the payload never arrives
    drop(*letter);
    if (batch != nullptr) seek_letter(*box, *batch, *incoming);
  }
}

// The caller must not access the message afterwards: the payload may arrive and be delivered at
// once.
void World::ask_for(Letter& letter) {
  if (std::exchange(letter.asked, true)) return;
  send(letter.arrival.peer, {.part = letter.number, .kind = Kind::kRequest});
}

void World::take_body(const Head& head, Wire::Arrival arrival) {
  const auto found = coming_.extract({arrival.peer, head.part});
  if (!found || found.mapped()->envelope.bytes != head.envelope.bytes)
    return raise_all("rank " + std::to_string(arrival.peer) + " sends what it has not announced");
  Letter& letter = *found.mapped();
  letter.announced = false;
  letter.there = arrival.whole;
  letter.payload = std::move(arrival.payload);
  letter.arrival = std::move(arrival);
  if (letter.there) return came(letter);
  receive_rest(letter);
  if (letter.batch != nullptr) wake_for(*letter.box, *letter.batch);
}

// Returns the credits of a message to the sender. A departed rank sends nothing and needs no
// credits.
void World::make_room(Letter& letter) {
  const int peer = letter.arrival.peer;
  const std::size_t room = flow(peer).asked_for(std::exchange(letter.cost, 0));
  if (room == 0 || deaf_ || gone_.contains(peer) || !wire_->right_thread()) return;
  send(peer, {.envelope = {.count = room}, .kind = Kind::kRoom});
}

}  // namespace tersor::host
