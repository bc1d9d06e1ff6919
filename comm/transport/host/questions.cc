// Who waits for whom: asked of those who are waited for, so that whoever is late is named and not
// those who wait for it.
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "comm/transport/host/state.h"
#include "comm/transport/host/world.h"

namespace tersor::host {
namespace {

/// Whether two ranks wait in different calls under one tag. Of sums another count is found at once.
bool differ(const Awaited& one, const Awaited& other) {
  return one.rank != kAnyRank && one.tag == other.tag &&
         (one.envelope.call != other.envelope.call ||
          one.envelope.signature != other.envelope.signature);
}

Awaited valid(const Awaited& answer, const Box& box) {
  const bool is_rank = answer.rank >= 0 && answer.rank < static_cast<int>(box.members.size());
  return is_rank ? answer : Awaited{};
}

}  // namespace

// Who waits here answers at once, whichever thread brings the question; who is elsewhere is silent.
void World::take_question(const Head& head, int peer) {
  questions_.emplace_back(head, peer);
  if (waiting_ > 0) return answer_questions();
  questioned_.store(true, std::memory_order_relaxed);
  ring_all();
}

void World::answer_questions() {
  if (questions_.empty()) return;
  questioned_.store(false, std::memory_order_relaxed);
  for (const auto& [question, peer] : std::exchange(questions_, {})) try {
      Head head;
      head.kind = Kind::kAnswer;
      head.channel = question.channel;
      head.part = question.part;
      const auto box = state_->boxes.find(question.channel);
      const Awaited awaited =
          box == state_->boxes.end() ? Awaited{} : this->awaited(*box->second, question.tag);
      head.from = awaited.rank;
      head.tag = awaited.tag;
      head.envelope = awaited.envelope;
      if (!faulty()) send(peer, head);
    } catch (const std::exception& error) {
      raise_locked(error.what());
    }
}

// For whose message, or for who takes one, whichever call began first.
Awaited World::awaited(const Box& box, std::uint32_t tag) const {
  Awaited first = box.letters.awaited(tag);
  for (const auto& [job, sending] : sends_) {
    const std::uint32_t own = sending.batch->key.tag;
    if (sending.box != &box || (own > tag && own != kUnorderedTag)) continue;
    if (own > first.tag || (own == first.tag && first.rank != kAnyRank)) continue;
    first = {sending.peer, own, sending.batch->envelope};
  }
  return first;
}

// Who waits in vain for this rank itself calls something else.
Culprit World::culprit(Box& box, Question question, std::string_view name) {
  const int peer = question.peer;
  int asked = box.rank;
  Awaited before = ask(box, {asked, question.tag});
  for (std::size_t hops = 0; hops < box.members.size(); ++hops) {
    const Awaited next = ask(box, question);
    if (next.rank == kAnyRank) return {question.peer == box.rank ? asked : question.peer};
    if (differ(before, next)) {
      const std::string who = box.name(question.peer), seen = ", seen from " + box.name(asked);
      return {question.peer,
              difference(before.envelope, next.envelope, who, hops == 0 ? name : "an operation") +
                  (hops == 0 ? "" : seen)};
    }
    asked = std::exchange(question.peer, next.rank);
    question.tag = next.tag;
    question.number = 0;
    before = next;
  }
  return {peer};
}

void World::put(Box& box, Question& question) {
  const std::lock_guard lock(gate_);
  put_locked(box, question);
}

void World::put_locked(Box& box, Question& question) {
  if (faulty() || !wire_->right_thread() || !wire_->running()) return;
  Head head = head_in(box, Kind::kQuestion);
  head.tag = question.tag;
  head.part = ++asked_;
  try {
    send(box.members[static_cast<std::size_t>(question.peer)], head);
    question.number = head.part;
  } catch (const std::exception&) {
    // It is as silent as can be.
  }
}

// Whom a rank waits for; nobody where it is silent.
Awaited World::ask(Box& box, Question question) {
  std::unique_lock lock(gate_);
  if (question.peer == box.rank) return awaited(box, question.tag);
  if (question.number == 0) put_locked(box, question);
  if (question.number == 0) return {};
  const Waiting here(waiting_);
  const auto until = Clock::now() + question.patience;
  while (!faulty()) {
    if (const auto found = answers_.extract(question.number)) return valid(found.mapped(), box);
    if (Clock::now() >= until) break;
    if (poll()) continue;
    lock.unlock();
    pause();
    lock.lock();
  }
  return {};
}

}  // namespace tersor::host
