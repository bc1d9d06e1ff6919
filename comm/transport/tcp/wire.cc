#include "comm/transport/tcp/wire.h"

#include <pthread.h>
#include <tersor/error.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kFlushedWithin = 1s;  // for sent messages, before closing

std::atomic<unsigned> forks{0};  // number of forks between the program's start and this process

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

/// The current count. The first call registers the fork handler.
unsigned counted_forks() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  return forks.load(std::memory_order_relaxed);
}

}  // namespace

Process::Process() : forks_(counted_forks()) {}

bool Process::is_this() const { return forks.load(std::memory_order_relaxed) == forks_; }

struct TcpWire::Peer {
  const int rank;
  MessageReader message_reader;
  std::string lost = {};  ///< reason of the loss, if lost
  std::vector<std::unique_ptr<Connection>> connections = {};

  bool over() const { return !lost.empty(); }
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
  auto made = std::make_unique<Peer>(Peer{
      rank, MessageReader(
                rank, address_.connections, [this](std::size_t bytes) { return take_block(bytes); },
                [this](Arrival arrival) { news_.push_back(std::move(arrival)); })});
  for (std::size_t connection = 0; connection < address_.connections; ++connection)
    made->connections.push_back(std::make_unique<Connection>(connection, made->message_reader,
                                                             owner_of(*made, connection)));
  return made;
}

Connection::Owner TcpWire::owner_of(Peer& peer, std::size_t connection) {
  return {.reactor = reactor_,
          .done = done_,
          .make_block = [this](std::size_t bytes) { return take_block(bytes); },
          .connect = [this, name = ConnectionId{peer.rank,
                                                connection}] { connection_manager_->want(name); },
          .read =
              [&peer] {
                for (const auto& other : peer.connections) other->look_again();
              },
          .read_rest = [&peer] { read_rest(peer); },
          .lose = [this, &peer](const std::string& cause) { lose(peer, cause); }};
}

template <typename Visitor>
void TcpWire::for_each_connection(Visitor&& visit) const {
  for (const auto& peer : peers_)
    if (peer != nullptr)
      for (const auto& connection : peer->connections) visit(*connection);
}

// Connections end one after another: the end of the first does not mean the others are empty.
void TcpWire::read_rest(Peer& peer) {
  constexpr int kMostRounds = 1000;
  bool any = true;
  for (int round = 0; any && round < kMostRounds; ++round) {
    any = false;
    for (const auto& connection : peer.connections) any = connection->read_rest() || any;
  }
}

// A peer may disconnect after a goodbye. Messages still queued for the peer are discarded.
void TcpWire::lose(Peer& peer, const std::string& cause) {
  if (peer.over()) return;
  peer.lost = "the connection to rank " + std::to_string(peer.rank) + " broke: " + cause;
  std::vector<std::shared_ptr<Job>> dropped;
  for (auto& connection : peer.connections) connection->close(dropped);
  if (peer.message_reader.ended())
    done_.insert(done_.end(), dropped.begin(), dropped.end());
  else
    losses_.push_back({peer.rank, std::move(dropped)});
}

void TcpWire::send(int to, MessageHead head, Payload payload) {
  Peer& receiver = peer(to);
  if (!receiver.over())
    post(receiver, head, std::move(payload));
  else if (receiver.message_reader.ended() && payload.job != nullptr)
    done_.push_back(std::move(payload.job));
  report_done();
}

void TcpWire::keep(int to, const Job* job) {
  for (const auto& connection : peer(to).connections) connection->keep(job);
}

void TcpWire::post(Peer& peer, const MessageHead& head, Payload payload) {
  const std::size_t bytes = payload.bytes.size();
  // A fault overtakes messages of the first connection only.
  const bool shared = bytes >= kLeastShared && !head.is_fault();
  const std::size_t parts = shared ? address_.connections : 1;
  if (payload.job != nullptr) payload.job->open = parts;
  for (std::size_t connection = 0; connection < parts; ++connection) {
    const Share share = share_of(bytes, connection, parts);
    peer.connections[connection]->send({.head = head,
                                        .headed = connection == 0,
                                        .payload = payload.bytes.subspan(share.first, share.bytes),
                                        .block = payload.block,
                                        .job = payload.job});
  }
}

bool TcpWire::poll() {
  if (connection_manager_ == nullptr) return false;  // alone, or ended
  const bool moved = move();
  report_done();
  return report_arrivals() || moved;
}

// Connections made after a poll wake the next sleep. Connections made before the poll need this
// explicit check.
bool TcpWire::move() {
  bool moved = reactor_.poll();
  while (take_connections()) moved |= reactor_.poll();
  return moved;
}

bool TcpWire::take_connections() {
  auto connections = connection_manager_->made();
  for (ConnectionResult& made : connections) {
    Peer& with = peer(made.name.peer);
    if (!made.socket)
      lose(with, made.failure);
    else if (!with.over())
      with.connections[made.name.connection]->open(std::move(*made.socket));
  }
  return !connections.empty();
}

void TcpWire::report_done() {
  for (const auto& job : std::exchange(done_, {}))
    if (job->done) job->done(*job);
}

bool TcpWire::report_arrivals() {
  const bool any = !news_.empty() || !losses_.empty();
  while (!news_.empty()) {
    Arrival arrival = std::move(news_.front());
    news_.pop_front();
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

std::size_t TcpWire::connections() const {
  std::size_t count = 0;
  for_each_connection([&](Connection& connection) { count += connection.socket() != nullptr; });
  return count;
}

void TcpWire::check_thread() {
  if (running()) return;
  throw InvalidArgumentError(
      "this process was forked after the transport was made: use a transport only in the process "
      "that made the transport");
}

bool TcpWire::shows_its_end_to(int peer) const {
  return std::ranges::any_of(this->peer(peer).connections, [](const auto& connection) {
    return connection->socket() != nullptr;
  });
}

// The listener may accept connections and stay silent.
std::string TcpWire::obstacle(int peer) const {
  const Endpoint& endpoint = address_.endpoints[static_cast<std::size_t>(peer)];
  if (peer == rank() || shows_its_end_to(peer) || endpoint.port() == 0) return {};
  return " (no process has answered at " + text_of(endpoint) + ")";
}

// Discards messages of peers: the operations are finished.
void TcpWire::record_abort() {
  for (const auto& peer : peers_)
    if (peer != nullptr) peer->message_reader.drop_payloads();
}

// Closing a connection with unread data discards bytes not yet delivered to the peer. Therefore,
// waits for the delivery and reads incoming messages. After a fork, everything belongs to the
// parent process: the connections, the event descriptors and the thread.
bool TcpWire::end(Parting parting) {
  if (!running()) return false;
  if (ranks() == 1) return true;
  const auto until = Clock::now() + kFlushedWithin;
  while (parting == Parting::kAlone && !flushed() && Clock::now() < until) {
    if (!move()) reactor_.sleep(Clock::now() + 1ms);  // acknowledgements cause no event
    news_.clear();
  }
  std::vector<std::shared_ptr<Job>> dropped;
  for_each_connection([&](Connection& connection) { connection.close(dropped); });
  connection_manager_.reset();
  news_.clear();
  done_.clear();
  return true;
}

bool TcpWire::flushed() const {
  bool left = true;
  for_each_connection([&](Connection& connection) {
    const bool arrived =
        connection.socket() == nullptr || connection.socket()->unacknowledged() == 0;
    left = left && arrived && connection.quiet();
  });
  return left;
}

}  // namespace tersor::tcp
