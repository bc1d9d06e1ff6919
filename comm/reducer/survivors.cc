#include "comm/reducer/survivors.h"

#include <tersor/error.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

namespace tersor {
namespace {

using namespace std::chrono_literals;

// Longer than a waiting rank needs to find a fault and announce the fault to others.
constexpr std::chrono::milliseconds kTimeout = 4s;
constexpr std::chrono::milliseconds kPollInterval = 50ms;
constexpr int kMaxRepeats = 3;  // of one step

std::string text_of(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i)
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  return text;
}

}  // namespace

Survivors::Survivors(Transport& transport, int min_ranks)
    : rank_(transport.rank()),
      min_ranks_(min_ranks),
      channel_(transport.isolated_channel()),
      members_(static_cast<std::size_t>(transport.ranks())),
      votes_(members_.size()) {
  mailbox_.emplace(*channel_, "remaining ranks", set_bytes());
  std::iota(members_.begin(), members_.end(), 0);
  base_ = members_;
}

void Survivors::close() {
  mailbox_.reset();
  channel_.reset();
}

Survivors::Vote Survivors::read(const Mailbox<Header>::Message& message) const {
  const ConstByteSpan bits = message.body;
  if (bits.size() != set_bytes())
    throw WireError("remaining ranks: a message of " +
                    std::to_string(sizeof(Header) + bits.size()) + " bytes, not " +
                    std::to_string(sizeof(Header) + set_bytes()));
  Vote vote{.header = message.header, .set = {}};
  for (std::size_t rank = 0; rank < votes_.size(); ++rank)
    if ((bits[rank / 8] & std::byte{1} << (rank % 8)) != std::byte{0})
      vote.set.insert(static_cast<int>(rank));
  return vote;
}

Survivors::Decision Survivors::agree(std::uint32_t steps, Cause cause) {
  set_ = {members_.begin(), members_.end()};
  for (const int peer : members_)
    if (const auto& vote = votes_[static_cast<std::size_t>(peer)]; vote.has_value())
      apply_vote(*vote);
  changed_ = true;
  while (changed_ || !all_agreed()) {
    if (std::exchange(changed_, false)) send_vote(steps, cause);
    if (receive_votes()) continue;
    if (Clock::now() >= deadline_)
      remove_silent();
    else
      channel_->wait_activity(std::min(deadline_, Clock::now() + kPollInterval));
  }
  flush_sends();
  const Decision decision = conclude(steps, cause);
  if (decision.lost.empty()) receive_later_votes();
  return decision;
}

// A late rank first receives the first votes of all ranks, and then the agreement without the late
// rank. Other later votes are kept for the next agreement.
void Survivors::receive_later_votes() {
  channel_->wait_activity(Clock::now());
  for (const int peer : members_)
    if (peer != rank_) receive_later_votes(peer);
}

void Survivors::receive_later_votes(int peer) try {
  while (auto vote = poll_vote(peer)) votes_[static_cast<std::size_t>(peer)] = std::move(vote);
} catch (const PeerLostError&) {  // the lost rank had sent all its messages
}

// Removed ranks also receive the set: a slow rank must not continue. Lost ranks do not.
void Survivors::send_vote(std::uint32_t steps, Cause cause) {
  deadline_ = Clock::now() + kTimeout;
  for (const int peer : members_) try {
      if (peer == rank_) continue;
      const Header header{.steps = steps, .agreements = agreements(), .cause = cause};
      mailbox_->send(peer, header, set_bytes(), [this](ByteSpan bits) {
        std::ranges::fill(bits, std::byte{0});
        for (const int rank : set_)
          bits[static_cast<std::size_t>(rank / 8)] |= std::byte{1} << (rank % 8);
        return bits.size();
      });
    } catch (const PeerLostError&) {
    }
}

// This rank may exit right after the agreement, and unsent messages would be lost.
void Survivors::flush_sends() {
  while (!all_sent() && Clock::now() < deadline_)
    channel_->wait_activity(std::min(deadline_, Clock::now() + kPollInterval));
}

bool Survivors::all_sent() {
  bool sent = true;
  for (const int peer : set_) try {
      sent &= mailbox_->unsent(peer) == 0;
    } catch (const PeerLostError&) {
    }
  return sent;
}

// A rank with a vote for this set may have exited. The vote remains valid.
bool Survivors::receive_votes() {
  bool any = false;
  for (const int peer : members_)
    if (set_.contains(peer) && !has_agreed(peer)) any |= receive_vote(peer);
  return any;
}

// Returns true if a message or a loss was found.
bool Survivors::receive_vote(int peer) try {
  std::optional<Vote> vote = poll_vote(peer);
  if (!vote.has_value()) return false;
  apply_vote(*vote);
  votes_[static_cast<std::size_t>(peer)] = std::move(vote);
  return true;
} catch (const PeerLostError&) {
  set_.erase(peer);
  changed_ = true;
  return true;
}

// Throws TransportError if the peer's set excludes this rank.
std::optional<Survivors::Vote> Survivors::poll_vote(int peer) {
  const auto message = mailbox_->receive(peer);
  if (!message.has_value()) return std::nullopt;
  Vote vote = read(*message);
  if (!vote.set.contains(rank_))
    throw TransportError("rank " + std::to_string(rank_) + " was left out by rank " +
                         std::to_string(peer) + ", which received no message from it within " +
                         std::to_string(kTimeout.count()) + " ms: the others continue without it");
  return vote;
}

void Survivors::apply_vote(const Vote& vote) {
  if (std::erase_if(set_, [&](int rank) { return !vote.set.contains(rank); }) != 0) changed_ = true;
}

// A vote of a later agreement counts, because the peer has concluded this agreement.
bool Survivors::has_agreed(int peer) const {
  const auto& vote = votes_[static_cast<std::size_t>(peer)];
  return peer == rank_ ||
         (vote.has_value() && vote->set == set_ && vote->header.agreements >= agreements());
}

std::uint32_t Survivors::agreements() const {
  return std::ranges::equal(set_, members_) ? agreements_ : 0;
}

bool Survivors::all_agreed() const {
  return std::ranges::all_of(set_, [this](int peer) { return has_agreed(peer); });
}

void Survivors::remove_silent() {
  Set agreeing;
  std::ranges::copy_if(set_, std::inserter(agreeing, agreeing.end()),
                       [this](int peer) { return has_agreed(peer); });
  set_ = std::move(agreeing);
  changed_ = true;
}

// At most one of two halves may continue.
bool Survivors::has_quorum() const {
  const std::size_t left = members_.size();
  if (min_ranks_ > 0) return left >= static_cast<std::size_t>(min_ranks_);
  return 2 * left > base_.size() || (2 * left == base_.size() && members_.front() == base_.front());
}

// A step completed since the last agreement was completed by all members.
Survivors::Decision Survivors::conclude(std::uint32_t steps, Cause cause) {
  bool is_timeout = cause == Cause::kTimeout;
  for (const int peer : set_) {
    if (peer == rank_) continue;
    const Header& header = votes_[static_cast<std::size_t>(peer)]->header;
    steps = std::max(steps, header.steps);
    is_timeout |= header.cause == Cause::kTimeout;
  }
  if (steps > base_steps_) {
    base_ = members_;
    repeats_ = 0;
  }
  base_steps_ = steps;
  Decision decision{.steps = steps, .lost = {}, .members = {set_.begin(), set_.end()}};
  std::ranges::set_difference(members_, decision.members, std::back_inserter(decision.lost));
  agreements_ = agreements() + 1;
  members_ = decision.members;
  decision.has_quorum = has_quorum();
  if (decision.lost.empty()) {
    decision.is_repeat = is_timeout && repeats_++ < kMaxRepeats;
    return decision;
  }
  repeats_ = 0;
  loss_log_ += text_of(decision.lost) + " lost after step " + std::to_string(steps) +
               ", with the residuals there\n";
  return decision;
}

}  // namespace tersor
