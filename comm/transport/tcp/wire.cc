#include "comm/transport/tcp/wire.h"

#include <pthread.h>
#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kFlushTimeout = 1s;  // for sent messages, before closing

std::atomic<unsigned> forks{0};  // number of forks between the program's start and this process

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

/// The current count. The first call registers the fork handler.
unsigned fork_count() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

ForkGuard::ForkGuard() : forks_(fork_count()) {}

bool ForkGuard::is_same_process() const { return forks.load(std::memory_order_relaxed) == forks_; }

struct TcpWire::Peer {
  const int rank;
  MessageReader message_reader;
  std::string lost = {};  ///< reason of the loss, if lost
  std::vector<std::unique_ptr<Connection>> connections = {};

  bool is_lost() const { return !lost.empty(); }
};

TcpWire::TcpWire(RankAddress address) : address_(std::move(address)) {}

TcpWire::~TcpWire() = default;

void TcpWire::start(Events events) {
  events_ = std::move(events);
  if (ranks() == 1) return;
  for (int rank = 0; rank < ranks(); ++rank)
    peers_.push_back(rank == address_.rank ? nullptr : make_peer(rank));
  connection_manager_ = std::make_unique<ConnectionManager>(address_, reactor_);
}

std::unique_ptr<TcpWire::Peer> TcpWire::make_peer(int rank) {
  auto peer = std::make_unique<Peer>(Peer{
      rank, MessageReader(
                rank, address_.connections, [this](std::size_t bytes) { return take_block(bytes); },
                [this](Arrival arrival) { arrivals_.push_back(std::move(arrival)); })});
  for (std::size_t connection = 0; connection < address_.connections; ++connection)
    peer->connections.push_back(std::make_unique<Connection>(connection, peer->message_reader,
                                                             owner_of(*peer, connection)));
  return peer;
}

Connection::Owner TcpWire::owner_of(Peer& peer, std::size_t connection) {
  return {.reactor = reactor_,
          .done = done_,
          .make_block = [this](std::size_t bytes) { return take_block(bytes); },
          .connect = [this, id = ConnectionId{peer.rank,
                                              connection}] { connection_manager_->request(id); },
          .on_read =
              [&peer] {
                for (const auto& other : peer.connections) other->resume_reading();
              },
          .drain = [&peer] { drain(peer); },
          .on_lost = [this, &peer](const std::string& cause) { on_lost(peer, cause); }};
}

template <typename Visitor>
void TcpWire::for_each_connection(Visitor&& visit) const {
  for (const auto& peer : peers_)
    if (peer != nullptr)
      for (const auto& connection : peer->connections) visit(*connection);
}

// Connections end one after another: the end of the first does not mean the others are empty.
void TcpWire::drain(Peer& peer) {
  constexpr int kMaxRounds = 1000;
  bool any = true;
  for (int round = 0; any && round < kMaxRounds; ++round) {
    any = false;
    for (const auto& connection : peer.connections) any = connection->drain() || any;
  }
}

// A peer may disconnect after a goodbye. Messages still queued for the peer are discarded.
void TcpWire::on_lost(Peer& peer, const std::string& cause) {
  if (peer.is_lost()) return;
  peer.lost = "the connection to rank " + std::to_string(peer.rank) + " broke: " + cause;
  std::vector<std::shared_ptr<Job>> dropped;
  for (auto& connection : peer.connections) connection->close(dropped);
  if (peer.message_reader.received_goodbye())
    done_.insert(done_.end(), dropped.begin(), dropped.end());
  else
    losses_.push_back({peer.rank, std::move(dropped)});
}

void TcpWire::send(int to, MessageHead head, Payload payload) {
  Peer& receiver = peer(to);
  if (!receiver.is_lost())
    post(receiver, head, std::move(payload));
  else if (receiver.message_reader.received_goodbye() && payload.job != nullptr)
    done_.push_back(std::move(payload.job));
  report_done();
}

void TcpWire::keep(int to, const Job* job) {
  for (const auto& connection : peer(to).connections) connection->keep(job);
}

void TcpWire::post(Peer& peer, const MessageHead& head, Payload payload) {
  const std::size_t bytes = payload.bytes.size();
  // A fault overtakes messages of the first connection only.
  const bool shared = bytes >= kMinShared && !head.is_fault();
  const std::size_t parts = shared ? address_.connections : 1;
  if (payload.job != nullptr) payload.job->open = parts;
  for (std::size_t connection = 0; connection < parts; ++connection) {
    const Share share = share_of(bytes, connection, parts);
    peer.connections[connection]->send({.head = head,
                                        .has_header = connection == 0,
                                        .payload = payload.bytes.subspan(share.first, share.bytes),
                                        .block = payload.block,
                                        .job = payload.job});
  }
}

bool TcpWire::poll() {
  if (connection_manager_ == nullptr) return false;  // alone, or ended
  const bool progressed = make_progress();
  report_done();
  return report_arrivals() || progressed;
}

// Connections made after a poll wake the next sleep. Connections made before the poll need this
// explicit check.
bool TcpWire::make_progress() {
  bool progressed = reactor_.poll();
  while (attach_connections()) progressed |= reactor_.poll();
  return progressed;
}

bool TcpWire::attach_connections() {
  auto connections = connection_manager_->take_completed();
  for (ConnectionResult& result : connections) {
    Peer& with = peer(result.id.peer);
    if (!result.socket)
      on_lost(with, result.failure);
    else if (!with.is_lost())
      with.connections[result.id.connection]->attach(std::move(*result.socket));
  }
  return !connections.empty();
}

void TcpWire::report_done() {
  for (const auto& job : std::exchange(done_, {}))
    if (job->done) job->done(*job);
}

bool TcpWire::report_arrivals() {
  const bool any = !arrivals_.empty() || !losses_.empty();
  while (!arrivals_.empty()) {
    Arrival arrival = std::move(arrivals_.front());
    arrivals_.pop_front();
    events_.take(std::move(arrival));
  }
  while (!losses_.empty()) {
    const Loss loss = std::move(losses_.front());
    losses_.pop_front();
    events_.lost(loss.peer, peer(loss.peer).lost);
  }
  return any;
}

void TcpWire::rest(int alarm, Clock::time_point until) const { reactor_.sleep(until, alarm); }

bool TcpWire::quiet() const {
  bool empty = true;
  for_each_connection([&](const Connection& connection) { empty = empty && connection.quiet(); });
  return empty;
}

void TcpWire::check_thread() {
  if (running()) return;
  throw InvalidArgumentError(
      "this process was forked after the transport was made: use a transport only in the process "
      "that made the transport");
}

bool TcpWire::exit_is_visible_to(int peer) const {
  return std::ranges::any_of(this->peer(peer).connections, [](const auto& connection) {
    return connection->socket() != nullptr;
  });
}

// The listener may accept connections and stay silent.
std::string TcpWire::missing_message_reason(int peer) const {
  const Endpoint& endpoint = address_.endpoints[static_cast<std::size_t>(peer)];
  if (peer == rank() || exit_is_visible_to(peer) || endpoint.port() == 0) return {};
  return " (no process has answered at " + text_of(endpoint) + ")";
}

// Discards messages of peers: the operations are finished.
void TcpWire::record_abort() {
  for (const auto& peer : peers_)
    if (peer != nullptr) peer->message_reader.discard_payloads();
}

// Closing a connection with unread data discards bytes not yet delivered to the peer. Therefore,
// waits for the delivery and reads incoming messages. After a fork, everything belongs to the
// parent process: the connections, the event descriptors and the thread.
bool TcpWire::end(Shutdown shutdown) {
  if (!running()) return false;
  if (ranks() == 1) return true;
  const auto until = Clock::now() + kFlushTimeout;
  while (shutdown == Shutdown::kUncoordinated && !flushed() && Clock::now() < until) {
    if (!make_progress()) reactor_.sleep(Clock::now() + 1ms);  // acknowledgements cause no event
    arrivals_.clear();
  }
  std::vector<std::shared_ptr<Job>> dropped;
  for_each_connection([&](Connection& connection) { connection.close(dropped); });
  connection_manager_.reset();
  arrivals_.clear();
  done_.clear();
  return true;
}

bool TcpWire::flushed() const {
  bool all_flushed = true;
  for_each_connection([&](Connection& connection) {
    const bool acknowledged =
        connection.socket() == nullptr || connection.socket()->unacknowledged() == 0;
    all_flushed = all_flushed && acknowledged && connection.quiet();
  });
  return all_flushed;
}

}  // namespace tersor::tcp
