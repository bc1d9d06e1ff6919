// How far a rank may run ahead of a peer. What it sends before the peer asks for it takes the
// peer's memory, so there is a bound: beyond it a message is only announced, waits at its sender,
// and comes once it is asked for. So nobody waits for room that another message takes: what a rank
// asks for always comes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace tersor::host {

/// What a message takes of the memory of a rank that has not asked for it, in blocks that may be
/// twice as long.
inline std::size_t unasked_cost(std::size_t payload_bytes) {
  constexpr std::size_t kLetter = 512, kCopied = 8 * 1024, kShared = 64 * 1024;
  if (payload_bytes <= kCopied) return kLetter + payload_bytes;
  return std::max(kShared, payload_bytes);  // MPI's lie where heads came, of up to 63 KiB
}

/// Of a rank and one other among so many, where the wire allows `most`: no less than a collective
/// has under way, four sums with 4 MiB in the ring of each. With a quarter of it sums of 64 MiB
/// over TCP took longer, by round trips.
inline std::size_t unasked_window(std::size_t most, int ranks) {
  constexpr std::size_t kOfAll = std::size_t{256} << 20, kLeast = std::size_t{256} << 10;
  return std::min(most,
                  std::max(kLeast, kOfAll / static_cast<std::size_t>(std::max(1, ranks - 1))));
}

/// With one peer.
class Flow {
 public:
  /// Announced messages.
  static constexpr std::size_t kMostWaiting = 65'536;

  explicit Flow(std::size_t window) : window_(window) {}

  /// Whether a message may go before it is asked for. Counts it.
  bool run_ahead(std::size_t cost) {
    if (ahead_ + cost > window_) return false;
    ahead_ += cost;
    return true;
  }
  /// The peer has room for so much again.
  void take_room(std::size_t room) { ahead_ -= std::min(room, ahead_); }

  /// This rank asked for a message of the peer's. The room that the peer is to be told of now.
  std::size_t asked_for(std::size_t cost) {
    room_ += cost;
    return room_ < window_ / 4 ? 0 : std::exchange(room_, 0);
  }

  std::uint32_t announced = 0;  ///< the number of the next message that waits here
  std::uint32_t heard_of = 0;   ///< the number of the next one that waits there
  std::size_t waiting = 0;      ///< here

 private:
  std::size_t window_;
  std::size_t ahead_ = 0;
  std::size_t room_ = 0;  // that the peer is not told of yet
};

}  // namespace tersor::host
