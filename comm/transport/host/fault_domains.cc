// Implements fault_domains.h, except disputes (disputes.cc).
#include "comm/transport/host/fault_domains.h"

#include <algorithm>
#include <utility>

namespace tersor::host {
namespace {

// Time to receive the reason for a lost rank from a better informed rank.
constexpr std::chrono::milliseconds kLossExplainedWithin{250};
constexpr std::size_t kMostFaultBytes = 16 * 1024;  // of a fault's text
constexpr std::size_t kMostDifferences = 4096;

}  // namespace

bool FaultDomains::gone(const ChannelState& channel, int rank) const {
  if (rank == kAnyRank)
    return std::ranges::all_of(
        channel.members, [&](int peer) { return peer == core_.rank || is_gone(channel, peer); });
  return is_gone(channel, channel.member(rank));
}

bool FaultDomains::is_gone(const ChannelState& channel, int peer) const {
  if (channel.left.contains(peer) || gone_.contains(peer)) return true;
  const auto loss = lost_.find(peer);
  return loss != lost_.end() && (loss->second.is_announced || channel.is_isolated());
}

std::string FaultDomains::why_gone(const ChannelState& channel, int rank) const {
  if (rank == kAnyRank) return "every other rank left";
  const auto loss = lost_.find(channel.member(rank));
  return channel.name(rank) + (loss == lost_.end() ? " left" : " is lost: " + loss->second.cause);
}

void FaultDomains::leave(int peer) {
  gone_.insert(peer);
  hasten_disputes_with(peer);
}

// Isolated channels learn at once of a rank lost without a goodbye. A rank often leaves because of
// another rank's fault, and the announcement of this fault follows. Ordinary fault domains wait for
// the announcement, in order not to blame the first departed rank.
bool FaultDomains::lose(int peer, const std::string& cause) {
  if (gone_.contains(peer)) return false;
  const auto [loss, is_new] =
      lost_.try_emplace(peer, Loss{cause, Clock::now() + kLossExplainedWithin});
  if (!is_new) return false;
  act_by(loss->second.announced_at);
  hasten_disputes_with(peer);
  return true;
}

bool FaultDomains::act(Clock::time_point now) {
  const Clock::time_point due = this->due();
  if (now < due) return false;
  due_ = Clock::time_point::max();
  end_disputes(now);
  for (auto& [peer, loss] : lost_) {
    if (loss.is_announced) continue;
    if (loss.announced_at > due) {
      act_by(loss.announced_at);
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
  if (domain.fault.text.size() > kMostFaultBytes) domain.fault.text.resize(kMostFaultBytes);
  if (domain.fault.disagreement.size() > kMostDifferences)
    domain.fault.disagreement.resize(kMostDifferences);
  std::erase_if(disputes_, [&](const Dispute& one) { return one.domain.get() == &domain; });
  domain.faulty.store(true, std::memory_order_release);
  ignores_arrivals_ = std::ranges::none_of(core_.channels.all(), [](const auto& entry) {
    const ChannelState& channel = *entry.second;
    return channel.domain != nullptr && !channel.released && !channel.faulty();
  });
}

void FaultDomains::fail_all(const std::string& cause) const {
  for (const auto& domain : core_.channels.domains()) core_.actions.fail(*domain, cause);
}

void FaultDomains::refuse(int peer) const {
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
  core_.actions.send(peer, {.channel = domain.id, .kind = Kind::kFault},
                     {text.bytes(), text, std::move(job)});
} catch (const std::exception&) {
  // The peer detects the fault at the deadline.
}

// Departed ranks delay an announcement only briefly, and never block the announcement for others.
bool FaultDomains::all_announced() const {
  return std::ranges::all_of(announcements_, [this](const auto& one) {
    return one.second->open == 0 || gone_.contains(one.first) || lost_.contains(one.first);
  });
}

}  // namespace tersor::host
