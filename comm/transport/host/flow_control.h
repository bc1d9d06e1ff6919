// Flow control: how far a rank may send ahead of the peer's receives. Eager messages use memory of
// the peer, up to a bound of credits. Beyond the bound, a rank only announces a message
// (rendezvous) and keeps the payload until the peer's request. A requested payload always arrives.
// Therefore, no message waits for credits held by another message.
#pragma once

#include <tersor/network.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "comm/transport/host/match_queue.h"

namespace tersor::host {

/// Credits of an eager message: the memory used at the peer until the receive is posted. Blocks may
/// be twice as long.
inline std::size_t eager_cost(std::size_t payload_bytes) {
  constexpr std::size_t kMessage = 512, kCopied = 8 * 1024, kShared = 64 * 1024;
  if (payload_bytes <= kCopied) return kMessage + payload_bytes;
  // Over MPI, eager payloads share receive blocks of up to 63 KiB.
  return std::max(kShared, payload_bytes);
}

/// Window of eager bytes per peer, at most `limit` (the wire's limit). The lower bound covers the
/// messages of one collective: four sums with 4 MiB under way in the ring of each. A quarter of
/// this window slowed sums of 64 MiB over TCP because of additional round trips.
inline std::size_t eager_window(std::size_t limit, int ranks) {
  constexpr std::size_t kTotal = std::size_t{256} << 20, kMin = std::size_t{256} << 10;
  return std::min(limit, std::max(kMin, kTotal / static_cast<std::size_t>(std::max(1, ranks - 1))));
}

/// The flow control with all peers, by world rank. Decides, and sends nothing.
class FlowControl {
 public:
  /// Maximum number of announced messages per peer.
  static constexpr std::size_t kMaxAnnounced = 65'536;

  FlowControl(int ranks, std::size_t window)
      : window_(window), flows_(static_cast<std::size_t>(ranks)) {}

  /// True if the peer must first request announced messages.
  bool is_full(int peer) { return flow(peer).held_count >= kMaxAnnounced; }
  /// Returns true if a message may be sent without a request, and uses the credits.
  bool send_eagerly(int peer, std::size_t bytes) {
    const std::size_t eager_bytes = flow(peer).eager_bytes + eager_cost(bytes);
    if (eager_bytes > window_) return false;
    flow(peer).eager_bytes = eager_bytes;
    return true;
  }
  void on_credits(int peer, std::size_t credits) {
    flow(peer).eager_bytes -= std::min(credits, flow(peer).eager_bytes);
  }
  /// Keeps the payload of an announced message until the peer's request.
  void hold(int peer, std::uint64_t channel, Wire::Payload payload) {
    ++flow(peer).held_count;
    held_[{peer, flow(peer).announced++}] = {channel, std::move(payload)};
  }
  /// Returns a requested payload, or nothing if the message was dropped.
  std::optional<Wire::Payload> take_request(int peer, std::uint32_t number) {
    auto found = held_.extract({peer, number});
    if (!found) return std::nullopt;
    --flow(peer).held_count;
    return std::move(found.mapped().payload);
  }
  template <typename Visitor>
  void for_each_held(const Visitor& visit) {
    for (auto& [number, held] : held_) visit(held.payload);
  }
  /// Drops held messages with `drops(peer, channel)` true. Returns their jobs.
  template <typename Drops>
  std::vector<std::shared_ptr<Wire::Job>> drop(const Drops& drops) {
    std::vector<std::shared_ptr<Wire::Job>> jobs;
    std::erase_if(held_, [&](auto& each) {
      auto& [number, held] = each;
      if (!drops(number.first, held.channel)) return false;
      --flow(number.first).held_count;
      jobs.push_back(std::move(held.payload.job));
      return true;
    });
    return jobs;
  }

  /// Adds a received announcement, or the credits of an eager message.
  void record_arrival(IncomingMessage& message) {
    const int peer = message.arrival.peer;
    message.cost = message.announced ? 0 : eager_cost(message.envelope.bytes);
    if (!message.announced) return;
    message.number = flow(peer).announced_by_peer++;
    announced_[{peer, message.number}] = &message;
  }
  /// Returns the message whose requested payload came, or null if no such message was announced.
  IncomingMessage* take_body(int peer, std::uint32_t number, std::size_t bytes) {
    const auto found = announced_.extract({peer, number});
    if (!found || found.mapped()->envelope.bytes != bytes) return nullptr;
    found.mapped()->announced = false;
    return found.mapped();
  }
  void remove_announcement(const IncomingMessage& message) {
    announced_.erase({message.arrival.peer, message.number});
  }
  /// Returns an announced message of the peer, or null.
  IncomingMessage* announced_by(int peer) const {
    const auto found = announced_.lower_bound({peer, 0});
    return found == announced_.end() || found->first.first != peer ? nullptr : found->second;
  }
  /// Collects a message's credits. Returns the credits to send now: 0 until a quarter of the window
  /// has accumulated.
  std::size_t collect_credits(IncomingMessage& message) {
    std::size_t& credits = flow(message.arrival.peer).credits;
    credits += std::exchange(message.cost, 0);
    return credits < window_ / 4 ? 0 : std::exchange(credits, 0);
  }

 private:
  struct Flow {
    std::size_t eager_bytes = 0;          // bytes sent eagerly, until the peer returns credits
    std::size_t credits = 0;              // returned credits not sent to the peer yet
    std::size_t held_count = 0;           // number of messages waiting on this rank
    std::uint32_t announced = 0;          // number of the next announcement by this rank
    std::uint32_t announced_by_peer = 0;  // number of the next announcement by the peer
  };
  struct Held {
    std::uint64_t channel;
    Wire::Payload payload;
  };
  using MessageId = std::pair<int, std::uint32_t>;  // peer, and the number of an announced message

  Flow& flow(int peer) { return flows_[static_cast<std::size_t>(peer)]; }

  const std::size_t window_;
  std::vector<Flow> flows_;
  std::map<MessageId, Held> held_;                   // announced by this rank and not yet requested
  std::map<MessageId, IncomingMessage*> announced_;  // announced by peers, until the payload comes
};

}  // namespace tersor::host
