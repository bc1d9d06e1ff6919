// The messages between servers and workers on an isolated channel: a header (Note), followed by a
// frame or a text for some types.
#pragma once

#include <tersor/buffer.h>
#include <tersor/error.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace tersor {

enum class ServerMessage : std::uint32_t {
  kJoin = 1,  // from a worker, with the signature
  kPush,      // with the worker's clock and a frame
  kPull,      // with the worker's clock
  kLeave,
  kJoined,   // from a server, with the first clock
  kTaken,    // with a push's clock: the push was applied to the weights
  kWeights,  // with the pull's clock and a frame
  kRefused,  // with a text
  kOptions,  // from a server: options that differ from the options of the worker that joins
};

/// The header before each message's frame or text. Little-endian.
struct ServerHeader {
  ServerMessage type = ServerMessage::kJoin;
  std::uint32_t clock = 0;
  std::uint64_t signature = 0;
  std::uint64_t bytes = 0;  ///< of the frame or text
  std::uint64_t reserved = 0;
};
static_assert(sizeof(ServerHeader) == 32);

inline constexpr std::size_t kMostText = std::size_t{1}
                                         << 20;  ///< maximum bytes of a text or of options

/// `keep_alive`: owner of the sent bytes. The network may read these bytes after the last wait.
inline Operation message_operation(std::shared_ptr<const void> keep_alive = {}) {
  constexpr auto kForEver = std::chrono::hours(24 * 365);
  return {.name = "parameter server",
          .tag = kUnorderedTag,
          .timeout = kForEver,
          .keep_alive = std::move(keep_alive)};
}

/// Throws WireError for an incomplete header or body.
inline std::pair<ServerHeader, ConstByteSpan> read_message(ConstByteSpan message) {
  ServerHeader header;
  if (message.size() < sizeof(header)) throw WireError("parameter server: a message is too short");
  std::memcpy(&header, message.data(), sizeof(header));
  if (header.bytes > message.size() - sizeof(header))
    throw WireError("parameter server: a message is truncated");
  return {header, message.subspan(sizeof(header), header.bytes)};
}

/// Messages to a rank that may still be under way.
class MessageSender {
 public:
  MessageSender(Transport& channel, int peer) : channel_(&channel), peer_(peer) {}

  /// `fill` writes at most `capacity` bytes after the header and returns the number of written
  /// bytes. Returns the bytes of the whole message. Throws PeerLostError.
  template <typename Fill>
  std::size_t send(ServerHeader header, std::size_t capacity, const Fill& fill) {
    forget_sent();
    const auto bytes = std::make_shared<Buffer>(sizeof(header) + capacity);
    header.bytes = fill(bytes->span().subspan(sizeof(header)));
    std::memcpy(bytes->pointer(), &header, sizeof(header));
    sent_.push_back(channel_->send(message_operation(bytes), peer_,
                                   bytes->span().first(sizeof(header) + header.bytes)));
    return sizeof(header) + header.bytes;
  }
  void send(const ServerHeader& header, std::string_view text = {}) {
    text = text.substr(0, kMostText);
    send(header, text.size(), [&](ByteSpan space) {
      return text.copy(reinterpret_cast<char*>(space.data()), text.size());
    });
  }

  /// Returns the number of messages still under way.
  std::size_t unsent() {
    forget_sent();
    return sent_.size();
  }

 private:
  void forget_sent() {
    while (!sent_.empty() && sent_.front().test()) sent_.pop_front();
  }

  Transport* channel_;
  int peer_;
  std::deque<Handle> sent_;
};

}  // namespace tersor
