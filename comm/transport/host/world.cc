// Implements world.h: who is there, faults, and waiting. Messages: messages.cc; questions:
// questions.cc.
#include "comm/transport/host/world.h"

#include <tersor/wire.h>

#include <algorithm>
#include <utility>

#include "comm/transport/arguments.h"
#include "comm/transport/host/hosts.h"

namespace tersor::host {
namespace {

using namespace std::chrono_literals;

constexpr auto kShortRest = 1ms;     // of who has other things to look after, too
constexpr auto kToldWithin = 200ms;  // a fault reaches whoever listens, if nothing is queued
constexpr auto kGoodbyeWithin = 1s;  // for the others to say theirs
constexpr auto kLeavesWithin = 10s;  // for what was sent to leave
constexpr std::size_t kMostFaultBytes = 16 * 1024;  // of its text

/// The same number on all ranks that make the same channel.
std::uint64_t channel_id(const Box& parent, std::span<const int> members, int ordinal) {
  Signature signature;
  signature.add(parent.id).add(ordinal);
  for (const int member : members) signature.add(member);
  return signature.value();
}

}  // namespace

World::World(std::unique_ptr<Wire> wire)
    : state_(new State{.wire = std::move(wire)}),
      wire_(state_->wire.get()),
      gate_(wire_->shared().gate),
      traits_(wire_->traits()),
      host_names_(wire_->host_names()),
      flows_(static_cast<std::size_t>(wire_->ranks()),
             Flow(unasked_window(traits_.most_unasked_bytes, wire_->ranks()))) {
  {
    const std::lock_guard lock(gate_);
    everybody_ = &box_of(Signature().value());
  }
  everybody_->members = all_ranks(wire_->ranks());
  everybody_->rank = wire_->rank();
  wire_->start({.take = [this](Wire::Arrival arrival) { take(std::move(arrival)); }});
}

World::~World() {
  if (!ended_) ended_ = wire_->end(parting());
  if (!*ended_) state_.release();
}

void World::close() {
  {
    const std::lock_guard lock(gate_);
    if (std::exchange(closed_, true)) return;
    present_ = 1;
  }
  leave(*everybody_);
  const Wire::Parting agreed = parting();
  const std::lock_guard lock(gate_);
  poison_locked("rank " + std::to_string(wire_->rank()) + " closed the transport");
  ended_ = wire_->end(agreed);
}

Wire::Parting World::parting() {
  const bool agreed = !traits_.keeps_sent && wire_->running() && said_goodbye();
  return agreed ? Wire::Parting::kAgreed : Wire::Parting::kAlone;
}

// Waits a moment for the others, and for what was sent, so that nothing is lost; true where all is
// over.
bool World::said_goodbye() {
  wire_->note_use();
  std::unique_lock lock(gate_);
  if (!wire_->right_thread()) return false;
  const auto start = Clock::now();
  const auto over = [this] {
    return static_cast<int>(gone_.size()) == wire_->ranks() - 1 && wire_->quiet();
  };
  while (!faulty() && !over() &&
         Clock::now() <
             start + (wire_->quiet() ? Clock::duration(kGoodbyeWithin) : kLeavesWithin)) {
    if (poll()) continue;
    lock.unlock();
    pause();
    lock.lock();
  }
  if (faulty()) tell_until(Clock::now() + kGoodbyeWithin);
  return !faulty() && over();
}

Box& World::box_of(std::uint64_t id) {
  auto& box = state_->boxes[id];
  if (box == nullptr) box = std::make_unique<Box>(id, gate_.take_bell());
  return *box;
}

Head World::head_in(const Box& box, Kind kind) const {
  return {.channel = box.id, .from = box.rank, .kind = kind};
}

Box& World::join(Box& box, std::span<const int> members) {
  const std::lock_guard lock(gate_);
  std::vector<int> of_all;
  for (const int member : members) of_all.push_back(box.members[static_cast<std::size_t>(member)]);
  Box& joined = box_of(channel_id(box, of_all, box.joined[of_all]++));
  joined.whole = box.whole && members.size() == box.members.size();
  joined.rank =
      static_cast<int>(std::find(members.begin(), members.end(), box.rank) - members.begin());
  joined.members = std::move(of_all);
  ++present_;
  return joined;
}

// Without a running network there is nobody left to tell.
void World::leave(Box& box) {
  if (!wire_->running()) return;
  wire_->note_use();
  const std::lock_guard lock(gate_);
  --present_;
  if (present_ == 0) held_.clear();
  if (!wire_->right_thread()) return;
  if (faulty()) return tell_more();
  Head head = head_in(box, Kind::kLeave);
  head.part = present_ == 0 ? 1 : 0;
  try {
    for (int peer = 0; peer < wire_->ranks(); ++peer) {
      const bool member = std::binary_search(box.members.begin(), box.members.end(), peer);
      if (peer != wire_->rank() && (member || head.part == 1)) send(peer, head);
    }
    poll();
  } catch (const std::exception& error) {
    raise_locked(error.what());
  }
}

void World::take_leave(const Head& head, int peer) {
  Box& box = box_of(head.channel);
  box.left.insert(peer);
  std::vector<Box*> concerned{&box};
  if (head.part == 1) {
    gone_.insert(peer);
    check_announced(peer);
    concerned.clear();
    for (auto& [id, other] : state_->boxes) concerned.push_back(other.get());
  }
  drop_held(peer, head.part == 1 ? nullptr : &box);
  for (Box* each : concerned) {
    check_abandoned(*each);
    drop_if_over(*each);
  }
}

// In a forked process the lock may be held by a thread that is not there.
void World::release(Box& box) {
  if (&box == everybody_ || !wire_->running()) return;
  const std::lock_guard lock(gate_);
  box.released = true;
  try {
    drop_if_over(box);
  } catch (const std::exception& error) {
    raise_locked(error.what());
  }
}

// Once all have left, or after a fault, no message for it is taken any more.
void World::drop_if_over(Box& box) {
  if (!box.released || !(faulty() || gone(box, kAnyRank))) return;
  for (Letter* letter : box.letters.unclaimed()) drop(*letter);
  gate_.give_back(box.bell);
  state_->boxes.erase(box.id);
}

// A rank is gone from a channel when it left it, or when its process left all.
bool World::gone_from(const Box& box, int rank) const {
  const int peer = box.members[static_cast<std::size_t>(rank)];
  return box.left.contains(peer) || gone_.contains(peer);
}

bool World::gone(const Box& box, int peer) const {
  if (peer != kAnyRank) return gone_from(box, peer);
  for (int rank = 0; rank < static_cast<int>(box.members.size()); ++rank)
    if (rank != box.rank && !gone_from(box, rank)) return false;
  return true;
}

void World::check_abandoned(Box& box) {
  if (box.members.empty()) return;  // nobody here has joined it yet
  const auto found = box.letters.in_vain([&](int peer) { return gone(box, peer); });
  if (!found.has_value()) return;
  raise_left(found->operation, box, found->peer);
}

void World::raise_left(std::string_view operation, const Box& box, int who) {
  const std::string name = who == kAnyRank ? "every other rank" : box.name(who);
  raise_locked(std::string(operation) + " on " + box.name(box.rank) + ": " + name + " left");
}

void World::raise(const std::string& cause) {
  const std::lock_guard lock(gate_);
  raise_locked(cause);
}

void World::raise_locked(const std::string& cause) {
  if (faulty()) return;
  poison_locked(cause);
  announce();
}

void World::poison_locked(const std::string& cause) {
  if (faulty()) return;
  wire_->note_poisoned();
  fault_ = cause;
  faulty_.store(true, std::memory_order_release);
  held_.clear();
  ring_all();
}

void World::ring_all() {
  for (auto& [id, box] : state_->boxes) gate_.ring(box->bell);
}

std::string World::fault() const {
  const std::lock_guard lock(gate_);
  return fault_;
}

// Tells everybody, on a thread that the network lets in; those who are gone cannot hold it up for
// long, and keep nobody else from hearing of it.
void World::announce() {
  unannounced_ = !wire_->right_thread();
  if (unannounced_ || !wire_->running()) return;
  const auto bytes = std::as_bytes(std::span(fault_));
  const Block text = in_block(bytes.first(std::min(bytes.size(), kMostFaultBytes)));
  for (int peer = 0; peer < wire_->ranks(); ++peer)
    if (peer != wire_->rank()) tell_fault(peer, text);
  tell_until(Clock::now() + kToldWithin);
}

// Passed on to those who would see this rank go, perhaps before they hear of it.
void World::hear_fault(const Wire::Arrival& arrival) {
  const ConstByteSpan bytes = arrival.payload.bytes();
  poison_locked({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  for (int peer = 0; peer < wire_->ranks(); ++peer)
    if (peer != wire_->rank() && peer != arrival.peer && wire_->shows_its_end_to(peer))
      tell_fault(peer, arrival.payload);
}

void World::tell_fault(int peer, const Block& text) try {
  auto job = std::make_shared<Wire::Job>();
  told_.push_back(job);
  send(peer, head_in(*everybody_, Kind::kFault), {text.bytes(), text, job});
} catch (const std::exception&) {
  // This one will find out at its deadline.
}

void World::pause() const {
  if (traits_.rests)
    wire_->rest(-1, Clock::now() + kShortRest);
  else
    wire_->pause();
}

bool World::told() const {
  return std::all_of(told_.begin(), told_.end(), [](const auto& job) { return job->open == 0; });
}

// A fault may stand in line behind much that was sent before: it moves while anybody calls.
void World::tell_more() {
  if (!wire_->right_thread()) return;
  if (unannounced_) return announce();
  if (told()) return;
  try {
    wire_->poll();
  } catch (const std::exception&) {
    // The fault is known here; who cannot be told finds out at the deadline.
  }
}

void World::tell_until(Clock::time_point until) {
  if (unannounced_) announce();
  while (!told() && Clock::now() < until) {
    tell_more();
    pause();
  }
}

std::vector<int> World::hosts(const Box& box) const {
  std::vector<int> names;
  for (const int member : box.members)
    names.push_back(host_names_[static_cast<std::size_t>(member)]);
  return number_hosts(names);
}

TransferCounters World::counters(const Box& box) const {
  const std::lock_guard lock(gate_);
  return box.counters;
}

// As `poll_wire`, on a thread that works here: it answers what others have asked.
bool World::poll() {
  answer_questions();
  return poll_wire();
}

// True where something moved. An error of the network is a fault like any other.
bool World::poll_wire() {
  if (faulty()) {
    tell_more();
    return false;
  }
  try {
    return wire_->poll();
  } catch (const std::exception& error) {
    raise_locked(error.what());
    return true;
  }
}

// What was closed comes first: to look for more may give the core away.
void World::progress(Box& box) {
  wire_->check_thread();
  if (!traits_.polled && !questioned_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(gate_);
  box.asleep_until = Box::kAwake;
  while (poll() && !gate_.will_ring(box.bell)) {
  }
}

void World::wait(Box& box, std::uint32_t seen, Clock::time_point until) {
  wire_->check_thread();
  const Waiting here(waiting_);
  if (!traits_.moves_alone) return poll_until(box, seen, until);
  if (traits_.polled) until = std::min(until, fall_asleep(box));
  box.bell.wait(seen, until, traits_.comes_soon ? Bell::Patience::kShort : Bell::Patience::kLong);
}

void World::poll_until(Box& box, std::uint32_t seen, Clock::time_point until) {
  box.patience.renew();
  for (Clock::time_point now{}; box.bell.rings() == seen && now < until;) {
    bool moved = false;
    {
      const std::lock_guard lock(gate_);
      moved = poll();
    }
    if (moved)
      box.patience.renew();
    else if (!traits_.rests)
      now = box.patience.wait(box.bell, seen, until, traits_.yields);
    else
      now = box.patience.wait_for_news(
          [&] { box.bell.wait_elsewhere(seen, [&](int alarm) { wire_->rest(alarm, until); }); });
  }
}

}  // namespace tersor::host
