// Nonblocking sockets, as used by the wire.
#pragma once

#include <tersor/span.h>

#include <asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/transport/tcp/descriptor.h"
#include "comm/transport/tcp/message_reader.h"
#include "comm/transport/tcp/records.h"
#include "comm/transport/tcp/send_queue.h"

namespace tersor::tcp {

using Endpoint = asio::ip::tcp::endpoint;

struct IoResult {
  std::size_t bytes = 0;
  bool would_block = false;  ///< True if no more bytes can be read or written for now
  std::string error = {};    ///< for an ended connection; "it was closed" by the peer
};

struct ConnectError {
  int code = 0;  ///< system error; 0 if connected or connecting

  explicit operator bool() const { return code != 0; }
  std::string text() const;
  /// True if the network or a host is the cause rather than the peer: a retry may succeed.
  bool is_transient() const;
};

class Socket {
 public:
  /// Wraps a connected socket.
  explicit Socket(Descriptor descriptor);
  /// Starts to connect. On an immediate failure, sets `error`.
  static Socket connect(const Endpoint& to, ConnectError& error);

  int fd() const { return descriptor_.fd(); }
  bool is_open() const { return descriptor_.is_open(); }
  /// The result for a connecting socket reported as writable.
  ConnectError connect_error() const;
  /// Number of bytes not acknowledged by the peer.
  std::size_t unacknowledged() const;

  /// Sends all later bytes as records, unless `protection` is kNone.
  void protect(TcpProtection protection, const SessionKeys& keys);
  /// True if bytes accepted by `write` have not left.
  bool pending() const { return records_ != nullptr && !records_->sealed().empty(); }

  IoResult read(const ReadBuffers& buffers);
  IoResult read(ByteSpan buffer) { return read({buffer, ByteSpan()}); }
  IoResult write(const WriteBuffers& buffers);
  /// Writes some first bytes of a connection, which always fit into the system's buffer.
  bool write_all(ConstByteSpan bytes) { return write({bytes}).bytes == bytes.size(); }

 private:
  IoResult receive(const ReadBuffers& buffers);
  IoResult send(const WriteBuffers& buffers);

  Descriptor descriptor_;
  std::unique_ptr<Records> records_;  // null without protection
};

/// A listening socket.
class Listener {
 public:
  /// Throws TransportError if the port is in use or the address belongs to another host.
  explicit Listener(const Endpoint& at);

  int fd() const { return descriptor_.fd(); }
  std::uint16_t port() const;
  /// The next connection, if any. Sets `exhausted` if no descriptor is free for the connection.
  std::optional<Socket> accept(bool& exhausted);

 private:
  Descriptor descriptor_;
};

/// "10.0.0.3:4711", "[fd00::3]:4711"
std::string text_of(const Endpoint& endpoint);

}  // namespace tersor::tcp
