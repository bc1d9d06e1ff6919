// Implements world.h: who is there, faults, and waiting. Messages: messages.cc.
#include "comm/transport/inproc/world.h"

#include <algorithm>
#include <numeric>

#include "comm/transport/host/hosts.h"

namespace tersor::inproc {
namespace {

std::vector<int> all_ranks(int ranks) {
  if (ranks < 1) throw InvalidArgument("a world has at least 1 rank, not " + std::to_string(ranks));
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

int checked_ranks_per_host(const Link& link) {
  if (link.ranks_per_host < 1)
    throw InvalidArgument("a host has at least 1 rank, not " + std::to_string(link.ranks_per_host));
  return link.ranks_per_host;
}

}  // namespace

Group::Group(std::vector<int> all_members, bool whole_world)
    : members(std::move(all_members)), whole(whole_world), mailboxes(members.size()) {
  int rank = 0;
  for (Mailbox& box : mailboxes) {
    box.group = this;
    box.rank = rank++;
  }
}

World::Rings::~Rings() {
  for (std::size_t index = 0; index < count_; ++index) bells_[index]->ring();
}

void World::Rings::add(host::Bell& bell) {
  if (std::find(bells_.begin(), bells_.begin() + count_, &bell) != bells_.begin() + count_) return;
  if (count_ == bells_.size())
    bell.ring();
  else
    bells_[count_++] = &bell;
}

World::World(int ranks, const Link& link)
    : ranks_per_host_(checked_ranks_per_host(link)),
      everybody_(all_ranks(ranks), true),
      claimed_(everybody_.members.size(), false),
      transports_(everybody_.members.size(), 0) {
  if (link.emulated()) emulator_.emplace(host_of(ranks - 1) + 1, link);
}

std::vector<int> World::hosts(const Group& group) const {
  std::vector<int> names;
  for (const int member : group.members) names.push_back(host_of(member));
  return host::number_hosts(names);
}

void World::enter(Mailbox& box) {
  box.presence = Mailbox::Presence::kHere;
  ++transports_[static_cast<std::size_t>(box.group->members[static_cast<std::size_t>(box.rank)])];
}

Mailbox& World::claim(int rank) {
  if (rank < 0 || rank >= ranks())
    throw InvalidArgument("rank " + std::to_string(rank) + " of a world of " +
                          std::to_string(ranks()) + " ranks");
  const std::lock_guard lock(mutex_);
  if (claimed_[static_cast<std::size_t>(rank)])
    throw InvalidArgument("the transport of rank " + std::to_string(rank) +
                          " was given out before");
  claimed_[static_cast<std::size_t>(rank)] = true;
  Mailbox& box = everybody_.mailboxes[static_cast<std::size_t>(rank)];
  enter(box);
  return box;
}

Mailbox& World::join(Mailbox& box, std::span<const int> members) {
  const std::lock_guard lock(mutex_);
  std::vector<int> world_members;
  int own = 0;
  for (const int member : members) {
    if (member == box.rank) own = static_cast<int>(world_members.size());
    world_members.push_back(box.group->members[static_cast<std::size_t>(member)]);
  }
  const bool whole = box.group->whole && members.size() == box.group->members.size();
  const int ordinal = box.joined[world_members]++;
  auto& group = groups_[{box.group, world_members, ordinal}];
  if (group == nullptr) group = std::make_unique<Group>(world_members, whole);
  Mailbox& joined = group->mailboxes[static_cast<std::size_t>(own)];
  enter(joined);
  return joined;
}

void World::leave(Mailbox& box) {
  Rings rings;
  const std::lock_guard lock(mutex_);
  box.presence = Mailbox::Presence::kLeft;
  --transports_[static_cast<std::size_t>(box.group->members[static_cast<std::size_t>(box.rank)])];
  for (Mailbox& other : everybody_.mailboxes) check_abandoned(other, rings);
  for (auto& [key, group] : groups_)
    for (Mailbox& other : group->mailboxes) check_abandoned(other, rings);
}

// A rank is gone from a group when its transport there is, or when all its transports are.
bool World::gone(const Group& group, int rank) const {
  const auto world_rank = static_cast<std::size_t>(group.members[static_cast<std::size_t>(rank)]);
  return group.mailboxes[static_cast<std::size_t>(rank)].presence == Mailbox::Presence::kLeft ||
         (claimed_[world_rank] && transports_[world_rank] == 0);
}

// Whether nobody is left whom a slot for `peer` could hear of.
bool World::gone(const Mailbox& box, int peer) const {
  if (peer != kAnyRank) return gone(*box.group, peer);
  for (const Mailbox& other : box.group->mailboxes)
    if (&other != &box && !gone(*box.group, other.rank)) return false;
  return true;
}

void World::check_abandoned(Mailbox& box, Rings& rings) {
  const auto found = box.letters.in_vain([&](int peer) { return gone(box, peer); });
  if (!found.has_value()) return;
  const std::string who =
      found->peer == kAnyRank ? "every other rank" : box.group->name(found->peer);
  raise_locked(
      std::string(found->operation) + " on " + box.group->name(box.rank) + ": " + who + " left",
      rings);
}

void World::raise(const std::string& cause) {
  Rings rings;
  const std::lock_guard lock(mutex_);
  raise_locked(cause, rings);
}

void World::raise_locked(std::string cause, Rings& rings) {
  if (faulty()) return;
  fault_ = std::move(cause);
  faulty_.store(true, std::memory_order_release);
  for (Mailbox& box : everybody_.mailboxes) rings.add(box.bell);
  for (auto& [key, group] : groups_)
    for (Mailbox& box : group->mailboxes) rings.add(box.bell);
}

std::string World::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

// Follows who waits for whom under the tag, up to one who waits for nobody.
int World::culprit(const Mailbox& box, int peer, std::uint32_t tag) const {
  const std::lock_guard lock(mutex_);
  int last = peer;
  for (std::size_t hops = 0; hops < box.group->members.size(); ++hops) {
    const int next = box.group->mailboxes[static_cast<std::size_t>(last)].letters.awaited(tag);
    if (next == kAnyRank) return last;
    last = next;
  }
  return most_absent(box);
}

// All wait for each other, so one of them does not look at what has come: the one whose thread has
// been elsewhere for longest.
int World::most_absent(const Mailbox& box) const {
  const auto& boxes = box.group->mailboxes;
  return std::min_element(boxes.begin(), boxes.end(),
                          [](const Mailbox& one, const Mailbox& other) {
                            return one.absent_since.load() < other.absent_since.load();
                          })
      ->rank;
}

TransferCounters World::counters(const Mailbox& box) const {
  const std::lock_guard lock(mutex_);
  return box.counters;
}

Clock::time_point World::time_of(Seconds seconds) const {
  if (seconds == kNever) return Clock::time_point::max();
  return start_ + std::chrono::ceil<Clock::duration>(std::chrono::duration<double>(seconds));
}

void World::progress(Mailbox& box) {
  box.absent_since.store(now());
  if (!emulator_) return;
  Rings rings;
  const std::lock_guard lock(mutex_);
  box.asleep_until = -kNever;
  advance(rings);
}

// Over an emulated link a rank sleeps until its next batch can be closed at the earliest, then
// looks again; whoever posts something that closes one earlier wakes it. Nobody else keeps time.
void World::wait(Mailbox& box, std::uint32_t seen, Clock::time_point until) {
  if (emulator_) {
    Rings rings;
    const std::lock_guard lock(mutex_);
    advance(rings);
    box.asleep_until = next_completion(box);
    until = std::min(until, time_of(box.asleep_until));
  }
  box.absent_since.store(kNever);
  box.bell.wait(seen, until,
                emulator_ ? host::Bell::Patience::kLong : host::Bell::Patience::kShort);
}

}  // namespace tersor::inproc
