// The message parser of a peer, for one or several connections: bytes become messages, in the order
// of their headers. Independent of sockets: the parser provides the memory for the next bytes of a
// connection and is notified of received bytes.
//
// The first connection (connection 0) carries headers and payloads. If a payload has at least
// kMinShared bytes, every connection carries a share, in the order of the headers and without
// a header.
#pragma once

#include <tersor/network.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <list>
#include <vector>

namespace tersor::tcp {

inline constexpr std::size_t kMinShared = 256 * 1024;

/// The share of a payload carried by a connection, at multiples of 4 KiB.
struct Share {
  std::size_t first = 0;
  std::size_t bytes = 0;
};
Share share_of(std::size_t payload_bytes, std::size_t connection, std::size_t connections);

/// The memory for the next bytes of a connection, in this order. Unused spans are empty and come
/// last.
using ReadBuffers = std::array<ByteSpan, 2>;

class MessageReader {
 public:
  using Sink = std::function<void(Wire::Arrival arrival)>;
  using MakeBlock = std::function<Block(std::size_t bytes)>;

  /// `sink` receives each complete message.
  MessageReader(int peer, std::size_t connections, MakeBlock make_block, Sink sink);

  /// Empty if the connection must not be read now.
  ReadBuffers buffers(std::size_t connection);
  /// Accepts bytes received from the connection into the memory from `buffers`. Throws
  /// TransportError if the bytes are no valid message.
  void on_received(std::size_t connection, std::size_t bytes);
  /// Discards all payloads without a received byte, after a fault: the payloads are read, but not
  /// stored.
  void discard_payloads() { discarding_ = true; }
  bool received_goodbye() const { return received_goodbye_; }
  /// True if a message has been received in part.
  bool within_message() const { return !partial_.empty() || staged_ != 0; }

 private:
  static constexpr std::size_t kStageBytes = 8 * 1024;

  struct PartialMessage {
    Wire::Arrival arrival;
    std::size_t missing = 0;  // bytes
  };
  struct PendingRead {  // expected from a connection for a payload
    std::size_t bytes = 0;
    std::byte* target = nullptr;  // null for discarded bytes
    PartialMessage* message = nullptr;
  };

  ByteSpan buffer_of(const PendingRead& read);
  ByteSpan free_buffer();
  void expect(PartialMessage& message);
  void read_stage();
  void begin_message(const MessageHead& head);
  void fill(std::size_t connection, std::size_t bytes);
  void fill_from_stage();
  void deliver();

  const int peer_;
  const MakeBlock make_block_;
  const Sink sink_;
  std::vector<std::deque<PendingRead>> reads_;  // by connection
  std::list<PartialMessage> partial_;           // in the order of the headers
  std::vector<std::byte> stage_;                // bytes after the last payload
  std::size_t staged_ = 0;                      // number of bytes in the stage
  std::size_t read_ = 0;                        // number of parsed bytes in the stage
  bool headers_only_ = false;  // True if the last payload was longer than the stage
  bool received_goodbye_ = false;
  bool discarding_ = false;
  std::vector<std::byte> discard_buffer_;  // target for discarded bytes
};

}  // namespace tersor::tcp
