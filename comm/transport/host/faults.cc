// Faults: waits in vain, the operations to end, and the announcement to all ranks.
#include <algorithm>
#include <string>
#include <utility>

#include "comm/transport/host/progress_engine.h"

namespace tersor::host {
namespace {

using namespace std::chrono_literals;

// Time for a fault to reach all responsive ranks, even on a busy machine.
constexpr auto kLossAnnouncedWithin = 1s;
// Time to receive the reason for a lost rank from a better informed rank.
constexpr auto kLossExplainedWithin = 250ms;
constexpr std::size_t kMostFaultBytes = 16 * 1024;  // of a fault's text
constexpr std::size_t kMostDifferences = 4096;

}  // namespace

void ProgressEngine::check_abandoned(ChannelState& channel) {
  if (channel.domain != nullptr && in_dispute(*channel.domain)) return;
  while (!channel.members.empty() && !channel.faulty()) {  // no members: not joined yet
    const auto found = channel.match_queue.in_vain([&](int peer) { return gone(channel, peer); });
    if (!found.has_value()) return;
    abandon(channel, *found->batch, found->peer);
  }
}

// An operation waiting for a departed rank fails alone on an isolated channel. Otherwise, the whole
// fault domain fails.
void ProgressEngine::abandon(ChannelState& channel, Batch& batch, int who) {
  std::string why = who == kAnyRank ? "every other rank" : channel.name(who);
  const auto loss = who == kAnyRank ? lost_.end() : lost_.find(channel.member(who));
  why += loss == lost_.end() ? " left" : " is lost: " + loss->second.cause;
  const std::string cause =
      std::string(batch.name) + " on " + channel.name(channel.rank) + ": " + why;
  if (channel.is_isolated())
    end(channel, batch, std::make_exception_ptr(PeerLostError(cause, who)));
  else if (!in_dispute(*channel.domain))  // a dispute ends by itself
    raise_locked(*channel.domain, cause);
}

void ProgressEngine::end(ChannelState& channel, Batch& batch, std::exception_ptr error) {
  take_back(channel, batch);
  batch.error = std::move(error);
  batch.open.store(0, std::memory_order_release);
  shared_lock_.signal(channel.event);
}

void ProgressEngine::end_late(ChannelState& channel, Batch& batch, std::exception_ptr error) {
  const std::lock_guard lock(shared_lock_);
  if (!batch.closed()) end(channel, batch, std::move(error));
}

// Isolated channels learn at once of a rank lost without a goodbye. A rank often leaves because of
// another rank's fault, and the announcement of this fault follows. Ordinary fault domains wait for
// the announcement, in order not to blame the first departed rank.
void ProgressEngine::lose(int peer, const std::string& cause) {
  if (gone_.contains(peer)) return;
  const auto [loss, is_new] =
      lost_.try_emplace(peer, Loss{cause, Clock::now() + kLossExplainedWithin});
  if (!is_new) return;
  next_loss_ = std::min(next_loss_.load(), loss->second.announced_at);
  end_sends(peer);
  part_with(peer);
  signal_all();  // sleeping threads must wake up in time
}

/// On isolated channels, ends sends to a lost rank, because the messages never leave.
void ProgressEngine::end_sends(int peer) {
  const auto is_vain = [peer](const auto& send) {
    const Outstanding& each = send.second;
    return each.channel->is_isolated() && each.channel->member(each.peer) == peer;
  };
  for (;;) {
    const auto vain = std::ranges::find_if(sends_, is_vain);
    if (vain == sends_.end()) return;
    const Outstanding each = vain->second;
    abandon(*each.channel, *each.batch, each.peer);
  }
}

// Returns true if a loss was announced.
bool ProgressEngine::announce_losses() {
  const Clock::time_point due = next_loss_.load(std::memory_order_relaxed);
  const Clock::time_point now = Clock::now();
  if (due == Clock::time_point::max() || now < due) return false;
  next_loss_ = Clock::time_point::max();
  end_disputes(now);
  for (auto& [peer, loss] : lost_) {
    if (loss.is_announced) continue;
    if (loss.announced_at > due) {
      next_loss_ = std::min(next_loss_.load(), loss.announced_at);
      continue;
    }
    loss.is_announced = true;
    for (const auto& domain : domains())
      if (domain->kind == FaultDomain::Kind::kOrdinary && domain->has(peer))
        raise_locked(*domain, loss.cause);
  }
  return true;
}

std::vector<std::shared_ptr<FaultDomain>> ProgressEngine::domains() const {
  std::vector<std::shared_ptr<FaultDomain>> all;
  for (const auto& [id, channel] : state_->channels)
    if (channel->domain != nullptr && std::ranges::find(all, channel->domain) == all.end())
      all.push_back(channel->domain);
  return all;
}

// Also for a fault domain not joined by this rank yet: a later `join` finds the domain faulty.
FaultDomain& ProgressEngine::domain_of(std::uint64_t id) {
  for (const auto& domain : domains())
    if (domain->id == id) return *domain;
  ChannelState& first = channel_of(id);
  if (first.domain == nullptr)
    first.domain = std::make_shared<FaultDomain>(id, FaultDomain::Kind::kOrdinary);
  return *first.domain;
}

void ProgressEngine::raise(ChannelState& channel, const std::string& cause) {
  const std::lock_guard lock(shared_lock_);
  raise_locked(*channel.domain, cause);
}

// A fault may follow from a dispute: then the text of the dispute is the cause.
void ProgressEngine::raise_locked(FaultDomain& domain, const Fault& fault) {
  if (domain.faulty) return;
  const auto dispute = std::ranges::find_if(
      disputes_, [&](const Dispute& one) { return one.domain.get() == &domain; });
  abort(domain, dispute == disputes_.end() ? fault : Fault(dispute->cause));
  announce(domain);
}

/// Used for errors of the wire and for misuse of the wire.
void ProgressEngine::raise_all(const std::string& cause) {
  for (const auto& domain : domains()) raise_locked(*domain, cause);
}

// Returns the credits of unexpected messages, because other fault domains continue. Copies unsent
// payloads first: once the domain is faulty, calls throw, and their callers may free the payloads.
void ProgressEngine::abort(FaultDomain& domain, const Fault& fault) {
  if (domain.faulty) return;
  for (const auto& [job, send] : sends_)
    if (send.channel->domain.get() == &domain) wire_->keep(send.channel->member(send.peer), job);
  domain.fault = fault;
  if (domain.fault.text.size() > kMostFaultBytes) domain.fault.text.resize(kMostFaultBytes);
  if (domain.fault.disagreement.size() > kMostDifferences)
    domain.fault.disagreement.resize(kMostDifferences);
  std::erase_if(disputes_, [&](const Dispute& one) { return one.domain.get() == &domain; });
  domain.faulty.store(true, std::memory_order_release);
  ignores_arrivals_ = std::ranges::none_of(state_->channels, [](const auto& entry) {
    const ChannelState& channel = *entry.second;
    return channel.domain != nullptr && !channel.released && !channel.faulty();
  });
  if (ignores_arrivals_) wire_->record_abort();
  for (const auto& [id, channel] : state_->channels) {
    if (channel->domain.get() != &domain) continue;
    drop_unclaimed(*channel);
    std::erase_if(held_, [&, own = channel->id](const auto& held) {
      if (held.second.channel != own) return false;
      --flow(held.first.first).waiting;
      return true;
    });
  }
  signal_all();
}

void ProgressEngine::signal_all() {
  for (auto& [id, channel] : state_->channels) shared_lock_.signal(channel->event);
}

Fault ProgressEngine::fault(const ChannelState& channel) const {
  const std::lock_guard lock(shared_lock_);
  return channel.domain->fault;
}

// Announces a fault to all ranks of a domain, on a thread with network access. Departed ranks delay
// the announcement only briefly and never block the announcement for others. On isolated channels,
// no other rank is concerned.
void ProgressEngine::announce(const FaultDomain& domain) {
  if (domain.kind == FaultDomain::Kind::kIsolated) return;
  unannounced_ = !wire_->right_thread();
  if (unannounced_ || !wire_->running()) return;
  std::erase_if(announcements_, [](const Announcement& one) { return one.job->open == 0; });
  const Block text = in_block(to_bytes(domain.fault));
  for (const int peer : domain.members)
    if (peer != wire_->rank()) send_fault(domain, peer, text);
  announce_until(Clock::now() + kLossAnnouncedWithin);
}

// Forwards a fault to the ranks able to detect this rank's end, possibly before they receive the
// fault.
void ProgressEngine::take_fault(const Head& head, const Wire::Arrival& arrival) {
  FaultDomain& domain = domain_of(head.channel);
  if (domain.faulty) return;
  try {
    abort(domain, parse_fault(arrival));
  } catch (const WireError& error) {
    abort(domain, "rank " + std::to_string(arrival.peer) +
                      " announces a fault that cannot be read: " + error.what());
  }
  for (const int peer : domain.members)
    if (peer != wire_->rank() && peer != arrival.peer && wire_->shows_its_end_to(peer))
      send_fault(domain, peer, arrival.payload);
}

void ProgressEngine::send_fault(const FaultDomain& domain, int peer, const Block& text) try {
  auto job = std::make_shared<Wire::Job>();
  announcements_.push_back({.peer = peer, .job = job});
  send(peer, {.channel = domain.id, .kind = Kind::kFault}, {text.bytes(), text, job});
} catch (const std::exception&) {
  // This rank detects the fault at the deadline.
}

bool ProgressEngine::all_announced() const {
  return std::ranges::all_of(announcements_, [this](const Announcement& one) {
    return one.job->open == 0 || gone_.contains(one.peer) || lost_.contains(one.peer);
  });
}

// A fault may be queued behind many messages. The announcement progresses in every call.
void ProgressEngine::announce_more() {
  if (!wire_->right_thread()) return;
  if (unannounced_) return announce(*everybody_->domain);
  if (all_announced()) return;
  try {
    wire_->poll();
  } catch (const std::exception&) {
    // the fault is known on this rank; unreachable ranks detect it at their deadlines
  }
}

void ProgressEngine::announce_until(Clock::time_point until) {
  if (unannounced_) announce(*everybody_->domain);
  while (!all_announced() && Clock::now() < until) {
    announce_more();
    pause();
  }
}

}  // namespace tersor::host
