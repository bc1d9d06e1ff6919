// Messages with a header on an isolated channel: for protocols in which a rank may be late or lost.
#pragma once

#include <tersor/buffer.h>
#include <tersor/error.h>
#include <tersor/transport.h>

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tersor {

/// Sends and receives messages of a `Header`, followed by a body. A member `bytes` of the header is
/// the size of the body. Operations have no timeout: the protocol decides who is silent for too
/// long. The functions throw PeerLostError if `peer` is lost.
template <typename Header>
class Mailbox {
  static_assert(std::is_trivially_copyable_v<Header>);

 public:
  struct Message {
    Handle owner;  ///< of the body
    Header header;
    ConstByteSpan body;
  };

  /// `name` is used in error texts. `capacity`: maximum bytes of a received body.
  Mailbox(Transport& channel, std::string_view name, std::size_t capacity)
      : channel_(&channel), name_(name), capacity_(sizeof(Header) + capacity) {}

  /// Sends bytes of a message that `owner` keeps.
  void send(int peer, std::shared_ptr<const void> owner, ConstByteSpan bytes) {
    unsent(peer);
    peers_[peer].sent.push_back(channel_->send(operation(std::move(owner)), peer, bytes));
  }
  /// `fill` writes at most `capacity` bytes of a body, and returns the number of written bytes.
  /// Returns the bytes of the whole message.
  template <typename Fill>
  std::size_t send(int peer, Header header, std::size_t capacity, const Fill& fill) {
    const auto message = std::make_shared<Buffer>(sizeof(Header) + capacity);
    const std::size_t bytes = fill(message->span().subspan(sizeof(Header)));
    if constexpr (requires { header.bytes; }) header.bytes = bytes;
    std::memcpy(message->pointer(), &header, sizeof(Header));
    send(peer, message, message->span().first(sizeof(Header) + bytes));
    return sizeof(Header) + bytes;
  }
  void send(int peer, const Header& header, std::string_view text = {}) {
    send(peer, header, text.size(), [&](ByteSpan space) {
      return text.copy(reinterpret_cast<char*>(space.data()), text.size());
    });
  }
  /// Returns the number of messages to `peer` that are under way.
  std::size_t unsent(int peer) {
    std::deque<Handle>& sent = peers_[peer].sent;
    while (!sent.empty() && sent.front().test()) sent.pop_front();
    return sent.size();
  }

  /// Starts to receive the next message from `peer`, if not started yet.
  void expect(int peer) {
    Handle& pending = peers_[peer].pending;
    if (!pending.valid()) pending = channel_->receive(operation({}), peer, capacity_);
  }
  /// Returns the next message from `peer`, if the message has arrived. Throws WireError for an
  /// incomplete message.
  std::optional<Message> receive(int peer) {
    expect(peer);
    Handle& pending = peers_[peer].pending;
    try {
      if (!pending.test()) return std::nullopt;
    } catch (...) {
      pending = {};  // after a message that is too long, others may follow
      throw;
    }
    Message message{.owner = std::exchange(pending, {}), .header = {}, .body = {}};
    const ConstByteSpan bytes = message.owner.received(peer);
    if (bytes.size() < sizeof(Header))
      throw WireError(std::string(name_) + ": a message is too short");
    std::memcpy(&message.header, bytes.data(), sizeof(Header));
    message.body = bytes.subspan(sizeof(Header));
    if constexpr (requires { message.header.bytes; }) {
      if (message.header.bytes > message.body.size())
        throw WireError(std::string(name_) + ": a message is truncated");
      message.body = message.body.first(message.header.bytes);
    }
    return message;
  }
  void cancel(int peer) { peers_.erase(peer); }

 private:
  struct Peer {
    std::deque<Handle> sent;
    Handle pending;
  };

  // `owner` keeps the sent bytes: the network may read them after an error.
  Operation operation(std::shared_ptr<const void> owner) const {
    return {.name = name_,
            .tag = kUnorderedTag,
            .timeout = std::chrono::hours(24 * 365),
            .keep_alive = std::move(owner)};
  }

  Transport* channel_;
  std::string_view name_;
  std::size_t capacity_;
  std::map<int, Peer> peers_;
};

}  // namespace tersor
