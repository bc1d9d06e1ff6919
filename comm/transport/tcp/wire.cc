#include "comm/transport/tcp/wire.h"

#include <pthread.h>
#include <tersor/error.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "comm/transport/tcp/connection.h"

namespace tersor::tcp {
namespace {

using namespace std::chrono_literals;

constexpr auto kFlushTimeout = 1s;  // for sent messages, before closing
// Payloads up to this size are copied unless sent at once.
constexpr std::size_t kCopiedBytes = 64 * 1024 - sizeof(MessageHead);

std::atomic<unsigned> forks{0};  // number of forks between the program's start and this process

void count_fork() { forks.fetch_add(1, std::memory_order_relaxed); }

/// The current count. The first call registers the fork handler.
unsigned fork_count() {
  [[maybe_unused]] static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  return forks.load(std::memory_order_relaxed);
}

struct Peer {
  const int rank;
  MessageReader message_reader;
  std::string lost = {};  ///< reason of the loss, if lost
  std::vector<std::unique_ptr<Connection>> connections = {};

  bool is_lost() const { return !lost.empty(); }
};

// Connections end one after another: the end of the first does not mean the others are empty.
void drain(const Peer& peer) {
  constexpr int kMaxRounds = 1000;
  bool any = true;
  for (int round = 0; any && round < kMaxRounds; ++round) {
    any = false;
    for (const auto& connection : peer.connections) any = connection->drain() || any;
  }
}

class TcpWire final : public Wire {
 public:
  explicit TcpWire(RankAddress address) : address_(std::move(address)) {}

  Traits traits() const override {
    return {.waiting = Waiting::kRest,
            .reports_losses = true,
            .borrows = true,
            .copied_bytes = kCopiedBytes};
  }
  int rank() const override { return address_.rank; }
  int ranks() const override { return static_cast<int>(address_.endpoints.size()); }
  std::vector<int> host_names() const override { return address_.host_names; }

  void start(Events events) override {
    events_ = std::move(events);
    if (ranks() == 1) return;
    for (int rank = 0; rank < ranks(); ++rank)
      peers_.push_back(rank == address_.rank ? nullptr : make_peer(rank));
    connection_manager_ = std::make_unique<ConnectionManager>(address_, reactor_);
  }

  // Closing a connection with unread data discards bytes not yet delivered to the peer. Therefore,
  // waits for the delivery and reads incoming messages. After a fork, everything belongs to the
  // parent process: the connections, the event descriptors and the thread.
  bool end(Shutdown shutdown) override {
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

  void send(int to, MessageHead head, Payload payload) override {
    Peer& receiver = peer(to);
    if (!receiver.is_lost())
      post(receiver, head, std::move(payload));
    else if (receiver.message_reader.received_goodbye() && payload.job != nullptr)
      done_.push_back(std::move(payload.job));
    report_done();
  }

  void keep(int to, const Job* job) override {
    for (const auto& connection : peer(to).connections) connection->keep(job);
  }

  bool poll() override {
    if (connection_manager_ == nullptr) return false;  // alone, or ended
    const bool progressed = make_progress();
    report_done();
    return report_arrivals() || progressed;
  }

  bool quiet() const override {
    return all_of_connections([](const Connection& connection) { return connection.quiet(); });
  }

  void rest(int alarm, Clock::time_point until) const override { reactor_.sleep(until, alarm); }

  // False in a forked process: the process has the memory and the descriptors, but no threads and
  // no rank of its own.
  bool running() const override { return forks.load(std::memory_order_relaxed) == forks_; }

  void check_thread() override {
    if (running()) return;
    throw InvalidArgumentError(
        "this process was forked after the transport was made: use a transport only in the process "
        "that made the transport");
  }

  bool exit_is_visible_to(int to) const override {
    return std::ranges::any_of(peer(to).connections, [](const auto& connection) {
      return connection->socket() != nullptr;
    });
  }

  // The listener may accept connections and stay silent.
  std::string missing_message_reason(int from) const override {
    const Endpoint& endpoint = address_.endpoints[static_cast<std::size_t>(from)];
    if (from == rank() || exit_is_visible_to(from) || endpoint.port() == 0) return {};
    return " (no process has answered at " + text_of(endpoint) + ")";
  }

  // Discards messages of peers: the operations are finished.
  void record_abort() override {
    for (const auto& peer : peers_)
      if (peer != nullptr) peer->message_reader.discard_payloads();
  }

 private:
  struct Loss {
    int peer;
    std::vector<std::shared_ptr<Job>> dropped;  ///< sends under way to the peer
  };

  std::unique_ptr<Peer> make_peer(int rank) {
    auto peer = std::make_unique<Peer>(Peer{
        rank,
        MessageReader(
            rank, address_.connections, [this](std::size_t bytes) { return take_block(bytes); },
            [this](Arrival arrival) { arrivals_.push_back(std::move(arrival)); })});
    for (std::size_t connection = 0; connection < address_.connections; ++connection)
      peer->connections.push_back(std::make_unique<Connection>(connection, peer->message_reader,
                                                               owner_of(*peer, connection)));
    return peer;
  }

  Connection::Owner owner_of(Peer& peer, std::size_t connection) {
    const ConnectionId id{peer.rank, connection};
    return {.reactor = reactor_,
            .done = done_,
            .make_block = [this](std::size_t bytes) { return take_block(bytes); },
            .connect = [this, id] { connection_manager_->request(id); },
            .on_read =
                [&peer] {
                  for (const auto& other : peer.connections) other->resume_reading();
                },
            .drain = [&peer] { drain(peer); },
            .on_lost = [this, &peer](const std::string& cause) { on_lost(peer, cause); }};
  }

  Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }

  template <typename Visitor>
  void for_each_connection(const Visitor& visit) const {
    for (const auto& peer : peers_)
      if (peer != nullptr)
        for (const auto& connection : peer->connections) visit(*connection);
  }

  template <typename Predicate>
  bool all_of_connections(const Predicate& holds) const {
    bool all = true;
    for_each_connection([&](Connection& connection) { all = all && holds(connection); });
    return all;
  }

  // A peer may disconnect after a goodbye. Messages still queued for the peer are discarded.
  void on_lost(Peer& peer, const std::string& cause) {
    if (peer.is_lost()) return;
    peer.lost = "the connection to rank " + std::to_string(peer.rank) + " broke: " + cause;
    std::vector<std::shared_ptr<Job>> dropped;
    for (auto& connection : peer.connections) connection->close(dropped);
    if (peer.message_reader.received_goodbye())
      done_.insert(done_.end(), dropped.begin(), dropped.end());
    else
      losses_.push_back({peer.rank, std::move(dropped)});
  }

  void post(Peer& peer, const MessageHead& head, Payload payload) {
    const std::size_t bytes = payload.bytes.size();
    // A fault overtakes messages of the first connection only.
    const bool shared = bytes >= kMinShared && !head.is_fault();
    const std::size_t parts = shared ? address_.connections : 1;
    if (payload.job != nullptr) payload.job->open = parts;
    for (std::size_t connection = 0; connection < parts; ++connection) {
      const Share share = share_of(bytes, connection, parts);
      peer.connections[connection]->send(
          {.head = head,
           .has_header = connection == 0,
           .payload = payload.bytes.subspan(share.first, share.bytes),
           .block = payload.block,
           .job = payload.job});
    }
  }

  // Connections made after a poll wake the next sleep. Connections made before the poll need this
  // explicit check.
  bool make_progress() {
    bool progressed = reactor_.poll();
    while (attach_connections()) progressed |= reactor_.poll();
    return progressed;
  }

  /// Returns true if there were any.
  bool attach_connections() {
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

  void report_done() {
    for (const auto& job : std::exchange(done_, {}))
      if (job->done) job->done(*job);
  }

  bool report_arrivals() {
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

  bool flushed() const {
    return all_of_connections([](Connection& connection) {
      return connection.quiet() &&
             (connection.socket() == nullptr || connection.socket()->unacknowledged() == 0);
    });
  }

  const unsigned forks_ = fork_count();
  RankAddress address_;
  Events events_;
  Reactor reactor_;
  std::unique_ptr<ConnectionManager> connection_manager_;
  std::vector<std::shared_ptr<Job>> done_;    // notifications to deliver
  std::deque<Arrival> arrivals_;              // messages to deliver, in order
  std::deque<Loss> losses_;                   // losses to deliver, after all messages
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null for this rank
};

}  // namespace

std::unique_ptr<Wire> make_wire(RankAddress address) {
  return std::make_unique<TcpWire>(std::move(address));
}

}  // namespace tersor::tcp
