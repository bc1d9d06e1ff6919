#include "comm/transport/tcp/pending_connections.h"

#include <tersor/error.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "comm/transport/tcp/connection_manager.h"

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr int kMaxDisconnects = 20;  // an overloaded peer may drop some connections
constexpr auto kUnreachableRetryDelay = 80ms;
constexpr auto kMinRetryDelay = 20ms;
constexpr auto kMaxRetryDelay = 1s;

Clock::duration retry_delay(int attempts) {
  return std::min<Clock::duration>(kMinRetryDelay * (1 << std::min(attempts, 10)), kMaxRetryDelay);
}

}  // namespace

IncomingConnection::IncomingConnection(ConnectionManager& owner, Socket socket)
    : owner_(owner), socket_(std::move(socket)), handshake_(owner.secret(), owner.rank()) {
  owner_.reactor().add(socket_.fd(), *this);
}

IncomingConnection::~IncomingConnection() {
  if (socket_.is_open()) owner_.reactor().remove(socket_.fd(), *this);
}

Socket IncomingConnection::release() {
  owner_.reactor().remove(socket_.fd(), *this);
  socket_.protect(owner_.protection(), handshake_.keys());
  return std::move(socket_);
}

bool IncomingConnection::on_events() {
  if (readable_ && !read_handshake()) owner_.drop(*this);
  return true;
}

// Returns false if the connection must end.
bool IncomingConnection::read_handshake() {
  while (!handshake_.receive_buffer().empty()) {
    const IoResult result = socket_.read(handshake_.receive_buffer());
    if (!result.error.empty()) return false;
    if (result.would_block && result.bytes == 0) return !(readable_ = false);
    const bool valid = handshake_.on_received(result.bytes);
    if (!handshake_.reply().empty() && !socket_.write_all(handshake_.reply())) return false;
    if (!valid) return false;
  }
  owner_.on_authenticated(*this);
  return false;
}

OutgoingConnection::OutgoingConnection(ConnectionManager& owner, const Hello& hello,
                                       const Endpoint& to, const ConnectDeadlines& deadlines)
    : owner_(owner), hello_(hello), to_(to), deadlines_(deadlines) {}

void OutgoingConnection::connect() {
  retry_at_ = Clock::time_point::max();
  ConnectError error;
  socket_.emplace(Socket::connect(to_, error));
  try {
    if (!error) owner_.reactor().add(socket_->fd(), *this);
  } catch (const TransportError&) {
    error.code = ENOMEM;  // the system has no room for another socket
  }
  if (error) on_unreachable(error);
}

void OutgoingConnection::disconnect() {
  if (socket_ && socket_->is_open()) owner_.reactor().remove(socket_->fd(), *this);
  socket_.reset();
  handshake_.reset();
  retry_at_ = Clock::time_point::max();
}

Socket OutgoingConnection::release() {
  owner_.reactor().remove(socket_->fd(), *this);
  socket_->protect(owner_.protection(), handshake_->keys());
  return std::move(*socket_);
}

bool OutgoingConnection::on_events() {
  if (!socket_) return false;
  const bool was_connecting = !handshake_;
  if (was_connecting && !(writable_ && start_handshake())) return false;
  if (!handshake_) return true;                              // unreachable
  return (readable_ && read_handshake()) || was_connecting;  // early bytes are reported once
}

bool OutgoingConnection::start_handshake() {
  if (const ConnectError error = socket_->connect_error()) return on_unreachable(error);
  handshake_.emplace(owner_.secret(), hello_);
  return socket_->write_all(handshake_->first_message()) || on_disconnect("it was closed");
}

bool OutgoingConnection::read_handshake() {
  while (!handshake_->receive_buffer().empty()) {
    const IoResult result = socket_->read(handshake_->receive_buffer());
    if (!result.error.empty()) return on_disconnect(result.error);
    if (result.would_block && result.bytes == 0) return readable_ = false;
    if (!handshake_->on_received(result.bytes)) {
      owner_.on_failed(*this, "the process at " + text_of(to_) +
                                  " does not know the secret of this group: the process is not a "
                                  "rank of the group, has an old secret, or was given "
                                  "another secret (TERSOR_SECRET in Python)");
      return true;
    }
    if (!handshake_->reply().empty() && !socket_->write_all(handshake_->reply()))
      return on_disconnect("it was closed");
  }
  owner_.on_verdict(*this, *handshake_->verdict());
  return true;
}

// A rank not listening yet refuses connections.
bool OutgoingConnection::on_unreachable(const ConnectError& error) {
  const auto now = Clock::now();
  disconnect();
  if (now < (error.is_transient() ? deadlines_.unreachable : deadlines_.refused))
    retry_at_ = now + kUnreachableRetryDelay;
  else
    owner_.on_failed(*this, "it cannot be reached at " + text_of(to_) + ": " + error.text());
  return true;
}

// An overloaded rank ends connections.
bool OutgoingConnection::on_disconnect(const std::string& reason) {
  disconnect();
  if (++disconnects_ < kMaxDisconnects)
    retry_at_ = Clock::now() + retry_delay(disconnects_);
  else
    owner_.on_failed(
        *this,
        "the process at " + text_of(to_) +
            " ends each connection before a proof that the process is a rank of this group: " +
            reason);
  return true;
}

}  // namespace tersor::tcp
