// Sockets that never wait, as the wire uses them.
#pragma once

#include <tersor/span.h>

#include <asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "comm/transport/tcp/descriptor.h"
#include "comm/transport/tcp/inbox.h"
#include "comm/transport/tcp/outbox.h"
#include "comm/transport/tcp/records.h"

namespace tersor::tcp {

using Endpoint = asio::ip::tcp::endpoint;

/// What became of a try to read or write.
struct Moved {
  std::size_t bytes = 0;
  bool dry = false;        ///< there is no more to read, or no more room, for now
  std::string error = {};  ///< of a connection that is over; "it was closed" by the other end
};

/// Why a connection was not made.
struct Refusal {
  int code = 0;  ///< the system's; 0: it was made, or is still being made

  explicit operator bool() const { return code != 0; }
  std::string text() const;
  /// The network or a host is to blame, not who was called: another try may end otherwise.
  bool may_pass() const;
};

class Socket {
 public:
  /// Of a connection.
  explicit Socket(Descriptor descriptor);
  /// Begins to connect. Where that fails at once, `refusal` says why.
  static Socket connect(const Endpoint& to, Refusal& refusal);

  int number() const { return descriptor_.number(); }
  bool open() const { return descriptor_.open(); }
  /// Of one that connects and was told to be writable.
  Refusal refusal() const;
  /// Bytes that the other end has not yet acknowledged.
  std::size_t unacknowledged() const;

  /// From now on all bytes travel in records, unless `protection` is kNone.
  void protect(TcpProtection protection, const SessionKeys& keys);
  /// True if bytes that `write` took have not left.
  bool pending() const { return records_ != nullptr && !records_->sealed().empty(); }

  Moved read(const Rooms& rooms);
  Moved read(ByteSpan room) { return read({room, ByteSpan()}); }
  Moved write(const Pieces& pieces);
  /// Of some bytes at the beginning of a connection, which always has room for them.
  bool write_all(ConstByteSpan bytes) { return write({bytes}).bytes == bytes.size(); }

 private:
  Moved receive(const Rooms& rooms);
  Moved send(const Pieces& pieces);

  Descriptor descriptor_;
  std::unique_ptr<Records> records_;  // null without protection
};

/// Where others call.
class Listener {
 public:
  /// Throws TransportError where the port is taken, or the address is no one of this host's.
  explicit Listener(const Endpoint& at);

  int number() const { return descriptor_.number(); }
  std::uint16_t port() const;
  /// The next one that calls, or none; `crowded` where there are no descriptors left for it.
  std::optional<Socket> accept(bool& crowded);

 private:
  Descriptor descriptor_;
};

/// "10.0.0.3:4711", "[fd00::3]:4711"
std::string text_of(const Endpoint& endpoint);

}  // namespace tersor::tcp
