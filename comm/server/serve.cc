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
constexpr std::size_t kMostUnsent = 8;

// The server's state of another rank.
struct Peer {
  int rank;
  bool gone = false;
  std::deque<std::uint32_t> pushed;    // without an answer
  std::optional<std::uint32_t> wants;  // clock of the requested weights
};

class Serving {
 public:
  Serving(Transport& channel, ParameterShard& shard, std::chrono::milliseconds straggler_timeout)
      : channel_(channel),
        shard_(shard),
        straggler_timeout_(straggler_timeout),
        mailbox_(channel, kServerMailbox, shard.push_capacity()) {
    for (int rank = 0; rank < channel.ranks(); ++rank)
      if (rank != channel.rank()) peers_.push_back({.rank = rank});
    shard.on_progress([&channel] { channel.wake(); });
  }
  ~Serving() { shard_.on_progress({}); }

  // If the server fails, all waiting workers receive the reason.
  void run(Clock::time_point join_by) try {
    serve_all(join_by);
  } catch (const std::exception& error) {
    send_refusal_to_all(error.what());
    throw;
  }

 private:
  void serve_all(Clock::time_point join_by) {
    const auto pause = std::clamp<Clock::duration>(straggler_timeout_ / 8, 1ms, 1s);
    while (!shard_.is_over() || !all_is_sent()) {
      const bool received = receive_all();
      for (Peer& peer : peers_) attend(peer, [&] { answer(peer); });
      leave_out_silent();
      if (!received) channel_.wait_activity(Clock::now() + pause);
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

  void send_refusal_to_all(std::string_view why) {
    for (Peer& peer : peers_) attend(peer, [&] { refuse(peer, why); });
    const auto until = Clock::now() + 5s;
    while (!all_is_sent() && Clock::now() < until) channel_.wait_activity(until);
  }

  // A silent worker may still be connected and may return, so the server sends the reason.
  void leave_out_silent() {
    const auto left_out = shard_.leave_out_silent(Clock::now() - straggler_timeout_);
    for (Peer& peer : peers_)
      if (std::ranges::count(left_out, peer.rank) != 0)
        attend(peer, [&] {
          refuse(peer, "this worker was left out: it sent nothing for " +
                           std::to_string(straggler_timeout_.count()) +
                           " ms while another worker waited for it");
          peer.gone = true;
        });
  }

  void lose(Peer& peer) {
    peer.gone = true;
    shard_.leave(peer.rank, true);
  }

  // The loss of a worker affects no other worker.
  template <typename Work>
  void attend(Peer& peer, const Work& work) try {
    if (!peer.gone) work();
  } catch (const PeerLostError&) {
    lose(peer);
  }

  bool receive_all() {
    bool received = false;
    for (Peer& peer : peers_) attend(peer, [&] { received |= receive(peer); });
    return received;
  }

  bool receive(Peer& peer) {
    mailbox_.expect(peer.rank);
    if (mailbox_.unsent(peer.rank) >= kMostUnsent) return false;
    try {
      const auto message = mailbox_.receive(peer.rank);
      if (!message.has_value()) return false;
      take(peer, message->header, message->body);
    } catch (const PeerLostError&) {
      throw;
    } catch (const Error& error) {
      refuse(peer, error.what());
    }
    return true;
  }

  void refuse(Peer& peer, std::string_view why) {
    mailbox_.send(peer.rank, {.type = ServerMessage::kRefused}, why.substr(0, kMostText));
  }

  void take(Peer& peer, const ServerHeader& header, ConstByteSpan frame) {
    switch (header.type) {
      case ServerMessage::kJoin:
        return join(peer, header.signature);
      case ServerMessage::kPush:
        shard_.push(peer.rank, header.clock, frame);
        return peer.pushed.push_back(header.clock);
      case ServerMessage::kPull:
        peer.wants = header.clock;
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

  void answer(Peer& peer) {
    while (peer.pushed.size() > shard_.waiting(peer.rank)) {
      mailbox_.send(peer.rank, {.type = ServerMessage::kTaken, .clock = peer.pushed.front()});
      peer.pushed.pop_front();
    }
    if (!peer.wants.has_value() || !shard_.may_pull(peer.rank, *peer.wants)) return;
    const std::uint32_t clock = *std::exchange(peer.wants, std::nullopt);
    mailbox_.send(peer.rank, {.type = ServerMessage::kWeights, .clock = clock},
                  shard_.pull_capacity(),
                  [&](ByteSpan space) { return shard_.pull(peer.rank, clock, space); });
  }

  bool all_is_sent() {
    bool sent = true;
    for (Peer& peer : peers_) attend(peer, [&] { sent &= mailbox_.unsent(peer.rank) == 0; });
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
  Serving(channel, shard, straggler_timeout).run(Clock::now() + timeout / 2);
}

}  // namespace tersor
