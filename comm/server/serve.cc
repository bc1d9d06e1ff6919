#include <tersor/server.h>

#include "comm/server/messages.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {
namespace {

using namespace std::chrono_literals;

// The server stops reading from a worker with this many unsent messages. A worker that sends
// requests but never receives then uses no more of the server's memory. A worker that follows the
// protocol has at most four.
constexpr std::size_t kMaxUnsent = 8;

// The server's state of another rank.
struct Peer {
  int rank;
  bool departed = false;
  std::deque<std::uint32_t> pushes;         // without an answer
  std::optional<std::uint32_t> pull_clock;  // clock of the requested weights
};

class ServerLoop {
 public:
  ServerLoop(Transport& channel, ParameterShard& shard, std::chrono::milliseconds straggler_timeout)
      : channel_(channel),
        shard_(shard),
        straggler_timeout_(straggler_timeout),
        mailbox_(channel, kServerMailbox, shard.push_capacity()) {
    for (int rank = 0; rank < channel.ranks(); ++rank)
      if (rank != channel.rank()) peers_.push_back({.rank = rank});
    shard.on_progress([&channel] { channel.wake(); });
  }
  ~ServerLoop() { shard_.on_progress({}); }

  // If the server fails, all waiting workers receive the reason.
  void run(Clock::time_point join_by) try {
    serve_all(join_by);
  } catch (const std::exception& error) {
    reject_all(error.what());
    throw;
  }

 private:
  void serve_all(Clock::time_point join_by) {
    const auto poll_interval = std::clamp<Clock::duration>(straggler_timeout_ / 8, 1ms, 1s);
    while (!shard_.is_over() || !all_sent()) {
      const bool received = receive_all();
      for (Peer& peer : peers_) serve_peer(peer, [&] { send_replies(peer); });
      remove_silent_workers();
      if (!received) channel_.wait_activity(Clock::now() + poll_interval);
      if (Clock::now() > join_by) check_joined();
    }
  }

  void check_joined() const {
    std::string missing;
    for (const int worker : shard_.missing()) missing += " " + std::to_string(worker);
    if (!missing.empty())
      throw TransportError("the parameter server on rank " + std::to_string(channel_.rank()) +
                           " waits for workers that did not join: ranks" + missing);
  }

  void reject_all(std::string_view reason) {
    for (Peer& peer : peers_) serve_peer(peer, [&] { reject(peer, reason); });
    const auto until = Clock::now() + 5s;
    while (!all_sent() && Clock::now() < until) channel_.wait_activity(until);
  }

  // A silent worker may still be connected and may return, so the server sends the reason.
  void remove_silent_workers() {
    const auto removed = shard_.leave_out_silent(Clock::now() - straggler_timeout_);
    for (Peer& peer : peers_)
      if (std::ranges::count(removed, peer.rank) != 0)
        serve_peer(peer, [&] {
          reject(peer, "this worker was left out: it sent nothing for " +
                           std::to_string(straggler_timeout_.count()) +
                           " ms while another worker waited for it");
          peer.departed = true;
        });
  }

  // The loss of a worker affects no other worker.
  template <typename Work>
  void serve_peer(Peer& peer, const Work& work) try {
    if (!peer.departed) work();
  } catch (const PeerLostError&) {
    peer.departed = true;
    shard_.leave(peer.rank, true);
  }

  bool receive_all() {
    bool received = false;
    for (Peer& peer : peers_) serve_peer(peer, [&] { received |= receive(peer); });
    return received;
  }

  bool receive(Peer& peer) {
    mailbox_.expect(peer.rank);
    if (mailbox_.unsent(peer.rank) >= kMaxUnsent) return false;
    try {
      const auto message = mailbox_.receive(peer.rank);
      if (!message.has_value()) return false;
      handle_message(peer, message->header, message->body);
    } catch (const PeerLostError&) {
      throw;
    } catch (const Error& error) {
      reject(peer, error.what());
    }
    return true;
  }

  void reject(Peer& peer, std::string_view reason) {
    mailbox_.send(peer.rank, {.type = ServerMessage::kRejected}, reason.substr(0, kMaxText));
  }

  void handle_message(Peer& peer, const ServerHeader& header, ConstByteSpan frame) {
    switch (header.type) {
      case ServerMessage::kJoin:
        return join(peer, header.signature);
      case ServerMessage::kPush:
        shard_.push(peer.rank, header.clock, frame);
        return peer.pushes.push_back(header.clock);
      case ServerMessage::kPull:
        peer.pull_clock = header.clock;
        return;
      case ServerMessage::kLeave:
        return shard_.leave(peer.rank);
      default:
        throw WireError("parameter server: unexpected message type");
    }
  }

  void join(Peer& peer, std::uint64_t signature) {
    if (signature != shard_.signature()) {
      const std::vector<std::byte> options = pack(shard_.agreement().strings());
      return mailbox_.send(peer.rank, {.type = ServerMessage::kOptions},
                           {reinterpret_cast<const char*>(options.data()), options.size()});
    }
    const std::uint32_t clock = shard_.join(peer.rank);
    mailbox_.send(peer.rank, {.type = ServerMessage::kJoined, .clock = clock});
  }

  void send_replies(Peer& peer) {
    while (peer.pushes.size() > shard_.waiting(peer.rank)) {
      mailbox_.send(peer.rank, {.type = ServerMessage::kApplied, .clock = peer.pushes.front()});
      peer.pushes.pop_front();
    }
    if (!peer.pull_clock.has_value() || !shard_.may_pull(peer.rank, *peer.pull_clock)) return;
    const std::uint32_t clock = *std::exchange(peer.pull_clock, std::nullopt);
    mailbox_.send(peer.rank, {.type = ServerMessage::kWeights, .clock = clock},
                  shard_.pull_capacity(),
                  [&](ByteSpan space) { return shard_.pull(peer.rank, clock, space); });
  }

  bool all_sent() {
    bool sent = true;
    for (Peer& peer : peers_) serve_peer(peer, [&] { sent &= mailbox_.unsent(peer.rank) == 0; });
    return sent;
  }

  Transport& channel_;
  ParameterShard& shard_;
  std::chrono::milliseconds straggler_timeout_;
  ServerMailbox mailbox_;
  std::vector<Peer> peers_;
};

}  // namespace

void serve(Transport& channel, ParameterShard& shard, std::chrono::milliseconds timeout,
           std::chrono::milliseconds straggler_timeout) {
  if (straggler_timeout == 0ms) straggler_timeout = timeout / 2;
  if (straggler_timeout >= timeout)
    throw InvalidArgumentError("straggler_timeout is " + std::to_string(straggler_timeout.count()) +
                               " ms: give less than the clients' timeout of " +
                               std::to_string(timeout.count()) +
                               " ms, otherwise a silent worker stops all others");
  ServerLoop(channel, shard, straggler_timeout).run(Clock::now() + timeout / 2);
}

}  // namespace tersor
