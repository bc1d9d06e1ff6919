// Flow control: how far a rank may send ahead of the peer's receives. Eager messages use memory of
// the peer, up to a bound of credits. Beyond the bound, a rank only announces a message
// (rendezvous) and keeps the payload until the peer's request. A requested payload always arrives.
// Therefore, no message waits for credits held by another message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tersor::host {

/// Credits of an eager message: the memory used at the peer until the receive is posted. Blocks may
/// be twice as long.
inline std::size_t eager_cost(std::size_t payload_bytes) {
  constexpr std::size_t kMessage = 512, kCopied = 8 * 1024, kShared = 64 * 1024;
  if (payload_bytes <= kCopied) return kMessage + payload_bytes;
  // Over MPI, eager payloads share receive blocks of up to 63 KiB.
  return std::max(kShared, payload_bytes);
}

/// Window of eager bytes per peer, at most `most` (the wire's limit). The lower bound covers the
/// messages of one collective: four sums with 4 MiB under way in the ring of each. A quarter of
/// this window slowed sums of 64 MiB over TCP because of additional round trips.
inline std::size_t eager_window(std::size_t most, int ranks) {
  constexpr std::size_t kOfAll = std::size_t{256} << 20, kLeast = std::size_t{256} << 10;
  return std::min(most,
                  std::max(kLeast, kOfAll / static_cast<std::size_t>(std::max(1, ranks - 1))));
}

/// The flow control state of a peer.
class Flow {
 public:
  /// Maximum number of announced messages.
  static constexpr std::size_t kMostWaiting = 65'536;

  explicit Flow(std::size_t window) : window_(window) {}

  /// Returns true if a message may be sent eagerly, and uses the credits.
  bool send_eagerly(std::size_t cost) {
    if (ahead_ + cost > window_) return false;
    ahead_ += cost;
    return true;
  }
  /// Adds credits returned by the peer.
  void take_credits(std::size_t credits) { ahead_ -= std::min(credits, ahead_); }

  /// Records credits to return to the peer. Returns the credits to send now: 0 until a quarter of
  /// the window has accumulated.
  std::size_t collect_credits(std::size_t cost) {
    credits_ += cost;
    return credits_ < window_ / 4 ? 0 : std::exchange(credits_, 0);
  }

  std::uint32_t announced = 0;          ///< number of the next announcement by this rank
  std::uint32_t announced_by_peer = 0;  ///< number of the next announcement by the peer
  std::size_t waiting = 0;              ///< number of messages waiting on this rank

 private:
  std::size_t window_;
  std::size_t ahead_ = 0;
  std::size_t credits_ = 0;  // returned credits not sent to the peer yet
};

}  // namespace tersor::host
