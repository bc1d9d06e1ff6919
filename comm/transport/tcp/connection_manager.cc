#include "comm/transport/tcp/connection_manager.h"

#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "kernels/host/signals.h"

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kExhaustedRetryDelay = 20ms;
constexpr std::size_t kExtraUnauthenticated = 128;  // in addition to the number of peers
constexpr int kMaxAcceptsPerPoll = 32;  // limit per poll, to handle handshakes in between

std::string rejection(const OutgoingConnection& connection, Verdict verdict) {
  const Hello& own = connection.hello();
  const std::string peer = "rank " + std::to_string(own.to);
  switch (verdict) {
    case Verdict::kRankTaken:
      return peer + " has a connection with another process of rank " + std::to_string(own.from) +
             ": each process needs a rank of its own";
    case Verdict::kWrongRank:
      return "the process at " + text_of(connection.to()) + " is not " + peer +
             ": the lists of addresses differ";
    case Verdict::kOtherGroupSize:
      return peer + " belongs to a group of another size than " + std::to_string(own.ranks) +
             " ranks";
    case Verdict::kOtherProtection:
      return peer +
             " has another value of protect (TERSOR_TCP_PROTECT in Python): set the same "
             "on all ranks";
    default:
      return peer + " has another number of connections with each rank than " +
             std::to_string(own.connections) + ": set the same connections on all ranks";
  }
}

}  // namespace

ConnectionManager::ConnectionManager(RankAddress& address, Reactor& wire)
    : address_(address),
      listener_(std::move(address.listener)),
      links_(address_.endpoints.size() * address_.connections),
      missing_(links_.size() - address_.connections),
      wire_(wire) {
  reactor_.add(listener_->fd(), *this);
  const kernels::SignalsBlocked quiet;
  try {
    thread_ = std::jthread([this] { serve(); });
  } catch (const std::system_error& error) {
    throw TransportError(std::string("cannot start the thread that makes connections: ") +
                         error.what());
  }
}

ConnectionManager::~ConnectionManager() {
  serving_ = false;
  reactor_.interrupt();
  thread_.join();
}

void ConnectionManager::serve() {
  while (serving_ && missing_ != 0) {
    reactor_.sleep(next_deadline());
    reactor_.poll();
    take_requests();  // afterwards, because polling consumes the alarm of earlier requests
    retired_.clear();
    check_deadlines();
  }
  serving_ = false;
  unauthenticated_.clear();
  for (ConnectionProgress& each : links_) each.outgoing.reset();
  reactor_.remove(listener_->fd(), *this);
  listener_.reset();
}

void ConnectionManager::request(ConnectionId id) {
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(id);
  }
  reactor_.interrupt();
}

void ConnectionManager::take_requests() {
  std::vector<ConnectionId> requests;
  {
    const std::lock_guard lock(mutex_);
    requests.swap(requests_);
  }
  for (const ConnectionId id : requests) start_connection(id);
}

void ConnectionManager::start_connection(ConnectionId id) {
  ConnectionProgress& target = link(id);
  if (target.connected || target.outgoing != nullptr) return;
  const Endpoint& endpoint = address_.endpoints[static_cast<std::size_t>(id.peer)];
  if (endpoint.port() == 0) return deliver({.id = id, .failure = "the rank does not listen"});
  const ConnectDeadlines deadlines{
      .refused = address_.listen_deadline,
      .unreachable = std::max(address_.listen_deadline, Clock::now() + address_.timeout)};
  target.outgoing = std::make_unique<OutgoingConnection>(*this, hello_to(id), endpoint, deadlines);
  target.outgoing->connect();
}

Hello ConnectionManager::hello_to(ConnectionId id) const {
  return {.from = rank(),
          .to = static_cast<std::uint32_t>(id.peer),
          .ranks = static_cast<std::uint32_t>(address_.endpoints.size()),
          .connections = static_cast<std::uint16_t>(address_.connections),
          .connection = static_cast<std::uint16_t>(id.connection),
          .protection = static_cast<std::uint64_t>(address_.protect)};
}

Clock::time_point ConnectionManager::next_deadline() const {
  Clock::time_point next = Clock::now() + (exhausted_ ? Clock::duration(kExhaustedRetryDelay) : 1h);
  if (!unauthenticated_.empty()) next = std::min(next, unauthenticated_.front()->deadline());
  for (const ConnectionProgress& each : links_)
    if (each.outgoing != nullptr) next = std::min(next, each.outgoing->retry_at());
  return next;
}

void ConnectionManager::check_deadlines() {
  const auto now = Clock::now();
  while (!unauthenticated_.empty() && unauthenticated_.front()->deadline() < now) drop_oldest();
  for (ConnectionProgress& each : links_)
    if (each.outgoing != nullptr && each.outgoing->retry_at() <= now) each.outgoing->connect();
  retired_.clear();
  if (std::exchange(exhausted_, false)) {
    reactor_.sleep(now + kExhaustedRetryDelay);
    reactor_.schedule(*this);
  }
}

bool ConnectionManager::on_events() {
  more_ = true;
  for (int accepts = 0; more_ && accepts < kMaxAcceptsPerPoll; ++accepts) more_ = accept();
  return true;
}

// Without free descriptors, drops an unauthenticated connection for the next.
bool ConnectionManager::accept() {
  auto socket = listener_->accept(exhausted_);
  if (exhausted_ || unauthenticated_.size() >= kExtraUnauthenticated + links_.size()) drop_oldest();
  if (!socket) return false;
  try {
    unauthenticated_.push_back(std::make_unique<IncomingConnection>(*this, std::move(*socket)));
  } catch (const TransportError&) {
    drop_oldest();  // the system has no room for another socket
  }
  return true;
}

void ConnectionManager::drop(IncomingConnection& connection) {
  unauthenticated_.remove_if([&](const auto& incoming) { return incoming.get() == &connection; });
}

void ConnectionManager::on_authenticated(IncomingConnection& connection) {
  const Hello client = connection.client();
  const Verdict verdict = check_hello(client);
  if (!connection.answer(verdict) || verdict != Verdict::kAccepted) return;
  finish({static_cast<int>(client.from), client.connection}, connection.release());
}

Verdict ConnectionManager::check_hello(const Hello& hello) {
  const std::uint32_t self = rank();
  if (hello.ranks != address_.endpoints.size()) return Verdict::kOtherGroupSize;
  if (hello.connections != address_.connections || hello.connection >= address_.connections)
    return Verdict::kOtherConnections;
  if (hello.protection != static_cast<std::uint64_t>(address_.protect))
    return Verdict::kOtherProtection;
  if (hello.to != self) return Verdict::kWrongRank;
  if (hello.from >= hello.ranks) return Verdict::kRankTaken;
  const ConnectionProgress& peer = link({static_cast<int>(hello.from), hello.connection});
  if (peer.connected) return Verdict::kRankTaken;
  return peer.outgoing != nullptr && self < hello.from ? Verdict::kDuplicate : Verdict::kAccepted;
}

// If both ranks connected at once, the peer's connection is used.
void ConnectionManager::on_verdict(OutgoingConnection& connection, Verdict verdict) {
  const ConnectionId id{static_cast<int>(connection.hello().to), connection.hello().connection};
  if (verdict == Verdict::kAccepted) return finish(id, connection.release());
  if (verdict != Verdict::kDuplicate) return on_failed(connection, rejection(connection, verdict));
  retire(id);
}

void ConnectionManager::on_failed(OutgoingConnection& connection, const std::string& reason) {
  const ConnectionId id{static_cast<int>(connection.hello().to), connection.hello().connection};
  retire(id);
  deliver({.id = id, .failure = reason});
}

void ConnectionManager::retire(ConnectionId id) {
  auto outgoing = std::exchange(link(id).outgoing, nullptr);
  if (outgoing == nullptr) return;
  outgoing->disconnect();
  retired_.push_back(std::move(outgoing));
}

// Ends this rank's own attempt if the peer's connection is used.
void ConnectionManager::finish(ConnectionId id, Socket socket) {
  retire(id);
  link(id).connected = true;
  --missing_;
  deliver({.id = id, .socket = std::move(socket)});
}

void ConnectionManager::deliver(ConnectionResult result) {
  {
    const std::lock_guard lock(mutex_);
    completed_.push_back(std::move(result));
    any_completed_ = true;
  }
  wire_.interrupt();
}

std::vector<ConnectionResult> ConnectionManager::take_completed() {
  if (!any_completed_) return {};
  const std::lock_guard lock(mutex_);
  any_completed_ = false;
  return std::exchange(completed_, {});
}

}  // namespace tersor::tcp
