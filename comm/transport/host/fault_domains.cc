// Implements fault_domains.h, except mismatches (mismatches.cc).
#include "comm/transport/host/fault_domains.h"

#include <algorithm>
#include <utility>

namespace tersor::host {
namespace {

// Time to receive the reason for a lost rank from a better informed rank.
constexpr std::chrono::milliseconds kLossReasonTimeout{250};
constexpr std::size_t kMaxFaultBytes = 16 * 1024;  // of a fault's text
constexpr std::size_t kMaxDifferences = 4096;

}  // namespace

bool FaultDomains::departed(const ChannelState& channel, int rank) const {
  if (rank == kAnyRank)
    return std::ranges::all_of(channel.members, [&](int peer) {
      return peer == core_.rank || peer_departed(channel, peer);
    });
  return peer_departed(channel, channel.member(rank));
}

bool FaultDomains::peer_departed(const ChannelState& channel, int peer) const {
  if (channel.departed.contains(peer) || left_.contains(peer)) return true;
  const auto loss = lost_.find(peer);
  return loss != lost_.end() && (loss->second.is_announced || channel.is_isolated());
}

std::string FaultDomains::departure_reason(const ChannelState& channel, int rank) const {
  if (rank == kAnyRank) return "every other rank left";
  const auto loss = lost_.find(channel.member(rank));
  return channel.name(rank) + (loss == lost_.end() ? " left" : " is lost: " + loss->second.cause);
}

void FaultDomains::record_departure(int peer) {
  left_.insert(peer);
  shorten_comparisons_with(peer);
}

// Isolated channels learn at once of a rank lost without a goodbye. A rank often leaves because of
// another rank's fault, and the announcement of this fault follows. Ordinary fault domains wait for
// the announcement, in order not to blame the first departed rank.
bool FaultDomains::record_loss(int peer, const std::string& cause) {
  if (left_.contains(peer)) return false;
  const auto [loss, is_new] =
      lost_.try_emplace(peer, Loss{cause, Clock::now() + kLossReasonTimeout});
  if (!is_new) return false;
  schedule(loss->second.announced_at);
  shorten_comparisons_with(peer);
  return true;
}

bool FaultDomains::run_due(Clock::time_point now) {
  const Clock::time_point next_deadline = this->next_deadline();
  if (now < next_deadline) return false;
  next_deadline_ = Clock::time_point::max();
  end_comparisons(now);
  for (auto& [peer, loss] : lost_) {
    if (loss.is_announced) continue;
    if (loss.announced_at > next_deadline) {
      schedule(loss.announced_at);
      continue;
    }
    loss.is_announced = true;
    for (const auto& domain : core_.channels.domains())
      if (domain->kind == FaultDomain::Kind::kOrdinary && domain->has(peer))
        core_.actions.fail(*domain, loss.cause);
  }
  return true;
}

void FaultDomains::abort(FaultDomain& domain, const Fault& fault) {
  domain.fault = fault;
  if (domain.fault.text.size() > kMaxFaultBytes) domain.fault.text.resize(kMaxFaultBytes);
  if (domain.fault.differences.size() > kMaxDifferences)
    domain.fault.differences.resize(kMaxDifferences);
  std::erase_if(comparisons_, [&](const Comparison& one) { return one.domain.get() == &domain; });
  domain.faulty.store(true, std::memory_order_release);
  ignores_arrivals_ = std::ranges::none_of(core_.channels.all(), [](const auto& entry) {
    const ChannelState& channel = *entry.second;
    return channel.domain != nullptr && !channel.released && !channel.faulty();
  });
}

void FaultDomains::fail_all(const std::string& cause) const {
  for (const auto& domain : core_.channels.domains()) core_.actions.fail(*domain, cause);
}

void FaultDomains::fail_forged_sender(int peer) const {
  fail_all("rank " + std::to_string(peer) + " sends in the name of another rank");
}

void FaultDomains::announce(const FaultDomain& domain) {
  std::erase_if(announcements_, [](const auto& one) { return one.second->open == 0; });
  const Block text = core_.pool.copy(to_bytes(domain.fault));
  for (const int peer : domain.members)
    if (peer != core_.rank) announce(domain, peer, text);
}

void FaultDomains::announce(const FaultDomain& domain, int peer, const Block& text) try {
  auto job = std::make_shared<Wire::Job>();
  announcements_.emplace_back(peer, job);
  core_.actions.send(peer, {.channel = domain.id, .type = MessageType::kFault},
                     {text.bytes(), text, std::move(job)});
} catch (const std::exception&) {
  // The peer detects the fault at the deadline.
}

// Departed ranks delay an announcement only briefly, and never block the announcement for others.
bool FaultDomains::all_announced() const {
  return std::ranges::all_of(announcements_, [this](const auto& one) {
    return one.second->open == 0 || left_.contains(one.first) || lost_.contains(one.first);
  });
}

}  // namespace tersor::host
