// Implements progress_engine.h: joining and leaving channels, and waiting. Messages: messages.cc;
// faults: faults.cc; questions: questions.cc.
#include "comm/transport/host/progress_engine.h"

#include <tersor/wire.h>

#include <algorithm>
#include <utility>

#include "comm/transport/arguments.h"
#include "comm/transport/host/hosts.h"

namespace tersor::host {
namespace {

using namespace std::chrono_literals;

constexpr auto kShortRest = 1ms;     // for a thread with other work to poll
constexpr auto kGoodbyeWithin = 1s;  // to receive the goodbyes of the others
constexpr auto kLeavesWithin = 10s;  // to deliver all sent messages

/// The channel id. All ranks making the same channel compute the same id.
std::uint64_t channel_id(const ChannelState& parent, std::span<const int> members, int ordinal) {
  Signature signature;
  signature.add(parent.id).add(ordinal);
  for (const int member : members) signature.add(member);
  return signature.value();
}

}  // namespace

ProgressEngine::ProgressEngine(std::unique_ptr<Wire> wire)
    : state_(new State{.wire = std::move(wire)}),
      wire_(state_->wire.get()),
      shared_lock_(wire_->shared().shared_lock),
      traits_(wire_->traits()),
      host_names_(wire_->host_names()),
      flows_(static_cast<std::size_t>(wire_->ranks()),
             Flow(eager_window(traits_.most_eager_bytes, wire_->ranks()))) {
  {
    const std::lock_guard lock(shared_lock_);
    everybody_ = &channel_of(Signature().value());
  }
  everybody_->members = all_ranks(wire_->ranks());
  everybody_->rank = wire_->rank();
  everybody_->domain = std::make_shared<FaultDomain>(everybody_->id, FaultDomain::Kind::kOrdinary);
  everybody_->domain->members = everybody_->members;
  wire_->start({.take = [this](Wire::Arrival arrival) { take(std::move(arrival)); },
                .lost = [this](int peer, const std::string& cause) { lose(peer, cause); }});
}

ProgressEngine::~ProgressEngine() {
  if (!ended_) {
    const Wire::Parting agreed = parting();
    const std::lock_guard lock(shared_lock_);
    ended_ = wire_->end(agreed);
  }
  if (!*ended_) state_.release();
}

void ProgressEngine::close() {
  {
    const std::lock_guard lock(shared_lock_);
    if (std::exchange(closed_, true)) return;
    present_ = 1;
  }
  leave(*everybody_);
  const Wire::Parting agreed = parting();
  const std::lock_guard lock(shared_lock_);
  for (const auto& domain : domains())
    abort(*domain, "rank " + std::to_string(wire_->rank()) + " closed the transport");
  ended_ = wire_->end(agreed);
}

Wire::Parting ProgressEngine::parting() {
  const bool agreed = !traits_.keeps_sent && wire_->running() && exchange_goodbyes();
  return agreed ? Wire::Parting::kAgreed : Wire::Parting::kAlone;
}

// Waits for the goodbyes of the others and for outgoing messages, to lose no message. Returns true
// if all ranks are gone and nothing is under way.
bool ProgressEngine::exchange_goodbyes() {
  wire_->record_use();
  std::unique_lock lock(shared_lock_);
  if (!wire_->right_thread()) return false;
  const auto start = Clock::now();
  const auto over = [this] {
    const auto away = static_cast<int>(gone_.size() + lost_.size());
    return away == wire_->ranks() - 1 && wire_->quiet();
  };
  const auto faulty = [this] { return everybody_->faulty(); };
  while (!faulty() && !over() &&
         Clock::now() <
             start + (wire_->quiet() ? Clock::duration(kGoodbyeWithin) : kLeavesWithin)) {
    if (poll()) continue;
    lock.unlock();
    pause();
    lock.lock();
  }
  if (faulty()) announce_until(Clock::now() + kGoodbyeWithin);
  return !faulty() && over();
}

ChannelState& ProgressEngine::channel_of(std::uint64_t id) {
  auto& channel = state_->channels[id];
  if (channel == nullptr) channel = std::make_unique<ChannelState>(id, shared_lock_.take_event());
  return *channel;
}

Head ProgressEngine::head_in(const ChannelState& channel, Kind kind) const {
  return {.channel = channel.id, .from = channel.rank, .kind = kind};
}

ChannelState& ProgressEngine::join(ChannelState& channel, std::span<const int> members,
                                   FaultDomain::Kind kind) {
  const std::lock_guard lock(shared_lock_);
  std::vector<int> of_all;
  for (const int member : members) of_all.push_back(channel.member(member));
  ChannelState& joined = channel_of(channel_id(channel, of_all, channel.joined[of_all]++));
  joined.whole = channel.whole && members.size() == channel.members.size();
  joined.rank =
      static_cast<int>(std::find(members.begin(), members.end(), channel.rank) - members.begin());
  if (kind == channel.domain->kind) {
    joined.domain = channel.domain;
  } else {
    if (joined.domain == nullptr) joined.domain = std::make_shared<FaultDomain>(joined.id, kind);
    joined.domain->members = of_all;
  }
  joined.members = std::move(of_all);
  isolated_channels_ = isolated_channels_ || kind == FaultDomain::Kind::kIsolated;
  ++present_;
  return joined;
}

// Without a running network, no peer can be notified. After a fault, no peer needs a notification,
// except with isolated channels. Then the network stays in use, and channel states are freed after
// the last member left.
void ProgressEngine::leave(ChannelState& channel) {
  if (!wire_->running()) return;
  wire_->record_use();
  const std::lock_guard lock(shared_lock_);
  --present_;
  if (present_ == 0) held_.clear();
  if (!wire_->right_thread()) return;
  Head head = head_in(channel, Kind::kLeave);
  head.part = present_ == 0 ? 1 : 0;
  if (ended_ || (channel.faulty() && !isolated_channels_)) return announce_more();
  try {
    for (int peer = 0; peer < wire_->ranks(); ++peer) {
      const bool member = std::binary_search(channel.members.begin(), channel.members.end(), peer);
      if (peer != wire_->rank() && (member || head.part == 1)) send(peer, head);
    }
    poll();
  } catch (const std::exception& error) {
    raise_all(error.what());
  }
}

void ProgressEngine::take_leave(const Head& head, int peer) {
  ChannelState& channel = channel_of(head.channel);
  channel.left.insert(peer);
  if (head.part == 1) {
    gone_.insert(peer);
    return part_with(peer);
  }
  drop_held(peer, &channel);
  check_abandoned(channel);
  drop_if_over(channel);
}

// Ends everything waiting for a departed rank. Abandoning an operation sends messages and may free
// other channel states, so the loop iterates over ids.
void ProgressEngine::part_with(int peer) {
  hasten_disputes_with(peer);
  drop_announced(peer);
  drop_held(peer, nullptr);
  std::vector<std::uint64_t> channels;
  for (const auto& [id, channel] : state_->channels) channels.push_back(id);
  for (const std::uint64_t id : channels) {
    const auto found = state_->channels.find(id);
    if (found == state_->channels.end()) continue;
    check_abandoned(*found->second);
    drop_if_over(*found->second);
  }
}

// After a fork, a nonexistent thread may hold the lock.
void ProgressEngine::release(ChannelState& channel) {
  if (&channel == everybody_ || !wire_->running()) return;
  const std::lock_guard lock(shared_lock_);
  channel.released = true;
  try {
    drop_if_over(channel);
  } catch (const std::exception& error) {
    raise_all(error.what());
  }
}

// After all members left or after a fault, the channel receives no more messages.
void ProgressEngine::drop_if_over(ChannelState& channel) {
  const bool over = gone(channel, kAnyRank) || (channel.faulty() && !isolated_channels_);
  if (!channel.released || !over) return;
  drop_unclaimed(channel);
  shared_lock_.give_back(channel.event);
  state_->channels.erase(channel.id);
}

// True if a rank left the channel, left all channels, or is lost.
bool ProgressEngine::gone_from(const ChannelState& channel, int rank) const {
  const int peer = channel.member(rank);
  if (channel.left.contains(peer) || gone_.contains(peer)) return true;
  const auto loss = lost_.find(peer);
  return loss != lost_.end() && (loss->second.is_announced || channel.is_isolated());
}

bool ProgressEngine::gone(const ChannelState& channel, int peer) const {
  if (peer != kAnyRank) return gone_from(channel, peer);
  for (int rank = 0; rank < static_cast<int>(channel.members.size()); ++rank)
    if (rank != channel.rank && !gone_from(channel, rank)) return false;
  return true;
}

void ProgressEngine::pause() const {
  if (traits_.waiting == Wire::Waiting::kRest)
    wire_->rest(-1, Clock::now() + kShortRest);
  else
    wire_->pause();
}

std::vector<int> ProgressEngine::hosts(const ChannelState& channel) const {
  std::vector<int> names;
  for (const int member : channel.members)
    names.push_back(host_names_[static_cast<std::size_t>(member)]);
  return number_hosts(names);
}

std::string ProgressEngine::obstacle(int peer) const {
  const std::lock_guard lock(shared_lock_);
  return wire_->obstacle(peer);
}

TransferCounters ProgressEngine::counters(const ChannelState& channel) const {
  const std::lock_guard lock(shared_lock_);
  return channel.counters;
}

// Like `poll_wire`, for a working thread: also answers questions of other ranks.
bool ProgressEngine::poll() {
  answer_questions();
  return poll_wire();
}

// Returns true if anything progressed. A network error fails all channels.
bool ProgressEngine::poll_wire() {
  if (ignores_arrivals_) {
    announce_more();
    return false;
  }
  try {
    const bool moved = wire_->poll();
    return announce_losses() || moved;
  } catch (const std::exception& error) {
    raise_all(error.what());
    return true;
  }
}

// Stops as soon as a batch is closed, because a further poll may yield the core.
void ProgressEngine::progress(ChannelState& channel) {
  wire_->check_thread();
  const bool is_due = next_loss_.load(std::memory_order_relaxed) != Clock::time_point::max();
  if (traits_.waiting == Wire::Waiting::kSleep && !questioned_.load(std::memory_order_relaxed) &&
      !is_due)
    return;
  const std::lock_guard lock(shared_lock_);
  channel.asleep_until = ChannelState::kAwake;
  while (poll() && !shared_lock_.will_signal(channel.event)) {
  }
}

void ProgressEngine::wait(ChannelState& channel, std::uint32_t seen, Clock::time_point until) {
  wire_->check_thread();
  const Waiting here(waiting_);
  until = std::min(until, next_loss_.load());
  if (!moves_alone()) return poll_until(channel, seen, until);
  const bool polls = traits_.waiting == Wire::Waiting::kSleepAndPoll;
  if (polls) until = std::min(until, fall_asleep(channel));
  channel.event.wait(seen, until, polls ? Event::WaitMode::kLong : Event::WaitMode::kShort);
}

void ProgressEngine::poll_until(ChannelState& channel, std::uint32_t seen,
                                Clock::time_point until) {
  channel.backoff.renew();
  for (Clock::time_point now{}; channel.event.signals() == seen && now < until;) {
    bool moved = false;
    {
      const std::lock_guard lock(shared_lock_);
      moved = poll();
    }
    if (moved)
      channel.backoff.renew();
    else if (traits_.waiting != Wire::Waiting::kRest)
      now = channel.backoff.wait(channel.event, seen, until,
                                 traits_.waiting == Wire::Waiting::kPollYielding);
    else
      now = channel.backoff.wait_for_news([&] {
        channel.event.wait_elsewhere(seen, [&](int alarm) { wire_->rest(alarm, until); });
      });
  }
}

}  // namespace tersor::host
