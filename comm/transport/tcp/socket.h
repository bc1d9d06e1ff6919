// Sockets of Asio that never wait, as the wire uses them.
#pragma once

#include <tersor/span.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "comm/transport/tcp/inbox.h"
#include "comm/transport/tcp/outbox.h"

namespace tersor::tcp {

using Endpoint = asio::ip::tcp::endpoint;

/// What became of a try to read or write.
struct Moved {
  std::size_t bytes = 0;
  bool dry = false;        ///< there is no more to read, or no more room, for now
  std::string error = {};  ///< of a connection that is over; "it was closed" by the other end
};

class Socket {
 public:
  explicit Socket(asio::ip::tcp::socket socket);
  /// Begins to connect.
  static Socket connect(asio::io_context& context, const Endpoint& to);

  int number() { return socket_.native_handle(); }
  bool open() const { return socket_.is_open(); }
  void close();
  /// Of one that connects and was told to be writable: the error, or an empty text.
  std::string connect_error();
  /// The other end is told that no more comes.
  void finish_sending();
  /// Bytes that the other end has not yet acknowledged.
  std::size_t unacknowledged();

  Moved read(const Rooms& rooms);
  Moved read(ByteSpan room) { return read({room, ByteSpan()}); }
  Moved write(const Pieces& pieces);
  /// Of some bytes at the beginning of a connection, which always has room for them.
  bool write_all(ConstByteSpan bytes);

 private:
  asio::ip::tcp::socket socket_;
};

/// Where others call.
class Listener {
 public:
  /// Throws TransportError where the port is taken, or the address is no one of this host's.
  Listener(asio::io_context& context, const Endpoint& at);

  int number() { return acceptor_.native_handle(); }
  void close();
  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }
  /// The next one that calls, or none; `crowded` where there are no descriptors left for it.
  std::optional<Socket> accept(bool& crowded);

 private:
  asio::ip::tcp::acceptor acceptor_;
};

/// "10.0.0.3:4711", "[fd00::3]:4711"
std::string text_of(const Endpoint& endpoint);

}  // namespace tersor::tcp
