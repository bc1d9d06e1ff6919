// Mismatched calls of two ranks. One rank sends the options of the call; the other rank compares
// the options and raises a fault on all ranks. The fault names every difference.
#include <algorithm>
#include <charconv>
#include <iterator>
#include <string>
#include <utility>

#include "comm/transport/host/fault_domains.h"

namespace tersor::host {
namespace {

using namespace std::chrono_literals;

// Time for a fault's announcement after a peer of a comparison has left.
constexpr auto kDepartedPeerTimeout = 250ms;
// The peer answers in its next call. If the peer computes for longer, the error names no options.
constexpr auto kOptionsTimeout = 2s;

/// Serialized options behind a text.
std::vector<std::byte> options_message(const std::string& text, const Agreement* options) {
  std::vector<std::string> strings = {text};
  if (options != nullptr) std::ranges::move(options->strings(), std::back_inserter(strings));
  return pack(strings);
}

std::string explanation(const std::vector<Difference>& differences, const ChannelState& channel) {
  if (differences.empty())
    return ": all options are equal, but the messages contain other parameters or rows";
  return ": " + text_of(differences, [&](int rank) { return channel.name(rank); });
}

/// The rank number in a message. Throws WireError.
int rank_of(const std::string& text) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc{}) throw WireError("options: \"" + text + "\" is not a rank");
  return rank;
}

/// The strings of a message from a peer: at least a text.
std::vector<std::string> strings_of(const Wire::Arrival& arrival) {
  std::vector<std::string> strings = unpack(arrival.payload.bytes());
  if (strings.empty()) throw WireError("options: the text is missing");
  return strings;
}

}  // namespace

std::vector<std::byte> to_bytes(const Fault& fault) {
  std::vector<std::string> strings = {fault.text};
  for (const Difference& one : fault.differences)
    strings.insert(strings.end(), {one.item, one.name, std::to_string(one.rank), one.value,
                                   std::to_string(one.other_rank), one.other_value});
  return pack(strings);
}

Fault parse_fault(const Wire::Arrival& arrival) try {
  const std::vector<std::string> strings = strings_of(arrival);
  if (strings.size() % 6 != 1) throw WireError("options: a difference is truncated");
  Fault fault(strings.front());
  for (std::size_t i = 1; i < strings.size(); i += 6)
    fault.differences.push_back({strings[i], strings[i + 1], rank_of(strings[i + 2]),
                                 strings[i + 3], rank_of(strings[i + 4]), strings[i + 5]});
  return fault;
} catch (const WireError& error) {
  return "rank " + std::to_string(arrival.peer) +
         " announces a fault that cannot be read: " + error.what();
}

Fault FaultDomains::cause(const FaultDomain& domain, const Fault& fault) const {
  for (const Comparison& one : comparisons_)
    if (one.domain.get() == &domain) return one.cause;
  return fault;
}

bool FaultDomains::is_comparing(const FaultDomain& domain) const {
  return std::ranges::any_of(comparisons_,
                             [&](const Comparison& one) { return one.domain.get() == &domain; });
}

void FaultDomains::compare_options(ChannelState& channel, const Mismatch& mismatch,
                                   const std::string& cause) {
  FaultDomain& domain = *channel.domain;
  if (domain.faulty || is_comparing(domain)) return;
  const bool own = mismatch.rank == channel.rank;
  const Agreement* agreement = own ? channel.agreements.find(mismatch.signature) : nullptr;
  const int peer = channel.member(own ? mismatch.other_rank : mismatch.rank);
  if (own && agreement == nullptr) return core_.actions.fail(domain, cause);
  const Head head{.envelope = {.signature = mismatch.other_signature, .count = mismatch.signature},
                  .channel = channel.id,
                  .part = static_cast<std::uint32_t>(mismatch.other_rank),
                  .from = channel.rank,
                  .type = own ? MessageType::kOptions : MessageType::kCompare};
  const Block block = core_.pool.copy(options_message(cause, agreement));
  const Clock::time_point until = Clock::now() + kOptionsTimeout;
  comparisons_.push_back({channel.domain, peer, cause, until});
  schedule(until);
  if (left_.contains(peer) || lost_.contains(peer)) return shorten_comparisons_with(peer);
  core_.channels.signal_all();  // a sleeping thread must wake up at `until`
  try {
    core_.actions.send(peer, head, {block.bytes(), block});
  } catch (const std::exception&) {
    core_.actions.fail(domain, cause);
  }
}

/// The channel with a mismatched call, or null if the message cannot be used.
ChannelState* FaultDomains::comparing_channel(const Head& head, int peer) const {
  ChannelState& channel = core_.channels.at(head.channel);
  if (channel.members.empty() || channel.faulty() || channel.is_isolated()) return nullptr;
  if (channel.is_sender(head.from, peer)) return &channel;
  fail_forged_sender(peer);
  return nullptr;
}

// A third rank reports a mismatch between this rank and rank `part`.
void FaultDomains::on_compare(const Head& head, const Wire::Arrival& arrival) {
  ChannelState* channel = comparing_channel(head, arrival.peer);
  if (channel == nullptr) return;
  const auto other = static_cast<int>(head.part);
  if (head.part >= channel->members.size() || other == channel->rank)
    return fail_forged_sender(arrival.peer);
  try {
    compare_options(*channel, {channel->rank, head.envelope.count, other, head.envelope.signature},
                    strings_of(arrival).front());
  } catch (const WireError& error) {
    core_.actions.fail(
        *channel->domain,
        channel->name(head.from) + " sends a mismatch that cannot be read: " + error.what());
  }
}

void FaultDomains::on_options(const Head& head, const Wire::Arrival& arrival) {
  ChannelState* channel = comparing_channel(head, arrival.peer);
  if (channel == nullptr) return;
  FaultDomain& domain = *channel->domain;
  std::erase_if(comparisons_, [&](const Comparison& one) { return one.domain.get() == &domain; });
  try {
    const std::vector<std::string> strings = strings_of(arrival);
    const Agreement other = Agreement::parse(std::span(strings).subspan(1));
    const Agreement* own = channel->agreements.find(head.envelope.signature);
    if (own == nullptr) return core_.actions.fail(domain, strings.front());
    auto differences = own->differences(other, channel->rank, head.from);
    const std::string cause = strings.front() + explanation(differences, *channel);
    core_.actions.fail(domain, {cause, std::move(differences)});
  } catch (const WireError& error) {
    core_.actions.fail(
        domain, channel->name(head.from) + " sends options that cannot be read: " + error.what());
  }
}

void FaultDomains::end_comparisons(Clock::time_point now) {
  const auto is_late = [now](const Comparison& one) { return now >= one.until; };
  const auto late = std::ranges::find_if(comparisons_, is_late);
  if (late != comparisons_.end()) {
    const Comparison ended = *late;
    core_.actions.fail(*ended.domain, ended.cause);
  }
  for (const Comparison& one : comparisons_) schedule(one.until);
}

// The peer may have left because of a fault that another rank still has to announce.
void FaultDomains::shorten_comparisons_with(int peer) {
  for (Comparison& one : comparisons_) {
    if (one.peer != peer) continue;
    one.until = std::min(one.until, Clock::now() + kDepartedPeerTimeout);
    schedule(one.until);
    core_.channels.signal_all();
  }
}

}  // namespace tersor::host
