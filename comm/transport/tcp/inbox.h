// What comes from one peer, over one connection or several: bytes become messages, in the order in
// which their heads came. Knows no socket: it says where the next bytes of a connection belong, and
// is told how many came.
//
// The first connection (lane 0) carries heads and payloads; of a payload of kLeastShared bytes or
// more every lane carries its share, in the order of the heads and without one.
#pragma once

#include <tersor/network.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <vector>

namespace tersor::tcp {

inline constexpr std::size_t kLeastShared = 256 * 1024;

/// The part of a payload that a lane carries, at multiples of 4 KiB. Where it begins and ends.
struct Share {
  std::size_t first = 0;
  std::size_t bytes = 0;
};
Share share_of(std::size_t payload_bytes, std::size_t lane, std::size_t lanes);

/// Where the next bytes of a connection belong, in this order; empty ones at the end.
using Rooms = std::array<ByteSpan, 2>;

class Inbox {
 public:
  using Take = std::function<void(Wire::Arrival arrival)>;
  using MakeBlock = std::function<Block(std::size_t bytes)>;

  /// `take` gets each message that is whole.
  Inbox(int peer, std::size_t lanes, MakeBlock make_block, Take take);

  /// Empty where nothing is to be read from this lane now.
  Rooms rooms(std::size_t lane);
  /// Bytes came from the lane, into the rooms that it had. Throws TransportError where they are no
  /// message.
  void came(std::size_t lane, std::size_t bytes);
  /// Nobody wants messages any more: payloads of which no byte has come yet are read, and not kept.
  void drop_payloads() { dropping_ = true; }
  /// The peer has said its last word.
  bool ended() const { return ended_; }
  /// Some of a message has come, but not all.
  bool within_message() const { return !letters_.empty() || staged_ != 0; }

 private:
  static constexpr std::size_t kStageBytes = 8 * 1024;

  struct Letter {
    Wire::Arrival arrival;
    std::size_t missing = 0;  // bytes
  };
  struct Due {  // of a payload, from a lane
    std::size_t bytes = 0;
    std::byte* place = nullptr;  // none for what is dropped
    Letter* letter = nullptr;
  };

  ByteSpan room_of(const Due& due);
  ByteSpan free_stage();
  void expect(Letter& letter);
  void read_stage();
  void open_letter(const MessageHead& head);
  void fill(std::size_t lane, std::size_t bytes);
  void fill_from_stage();
  void deliver();

  const int peer_;
  const MakeBlock make_block_;
  const Take take_;
  std::vector<std::deque<Due>> due_;  // by lane
  std::list<Letter> letters_;         // in the order of their heads
  std::vector<std::byte> stage_;      // what came behind the last payload
  std::size_t staged_ = 0;            // bytes of these
  std::size_t read_ = 0;              // bytes of these again
  bool heads_alone_ = false;          // the last payload was longer than the stage
  bool ended_ = false;
  bool dropping_ = false;
  std::vector<std::byte> waste_;  // where what is dropped goes
};

}  // namespace tersor::tcp
