#include <tersor/server.h>

#include "comm/server/notes.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tersor {
namespace {

using namespace std::chrono_literals;

// What a server knows of another rank.
struct Peer {
  Peer(Transport& lifeline, int number) : rank(number), out(lifeline, number) {}

  int rank;
  Outbox out;
  Handle ear;
  bool gone = false, joined = false;
  std::deque<std::uint32_t> pushed;    // and not answered
  std::optional<std::uint32_t> wants;  // the weights of this clock
  Clock::time_point heard = Clock::now();
};

class Serving {
 public:
  Serving(Transport& lifeline, ParameterShard& shard, std::chrono::milliseconds timeout)
      : lifeline_(lifeline), shard_(shard), timeout_(timeout) {
    for (int rank = 0; rank < lifeline.ranks(); ++rank)
      if (rank != lifeline.rank()) peers_.emplace_back(lifeline, rank);
    shard.on_progress([&lifeline] { lifeline.wake(); });
  }
  ~Serving() { shard_.on_progress({}); }

  // Who waits for a server that fails hears why.
  void run() try { serve_all(Clock::now() + timeout_); } catch (const std::exception& error) {
    tell_all(error.what());
    throw;
  }

 private:
  void serve_all(Clock::time_point first) {
    while (!shard_.is_over() || !all_is_sent()) {
      const bool heard = hear_all();
      for (Peer& peer : peers_) attend(peer, [&] { answer(peer); });
      leave_out_silent();
      if (!heard) lifeline_.wait_activity(Clock::now() + 1s);
      if (Clock::now() > first && !shard_.has_begun())
        throw TransportError("the parameter server on rank " + std::to_string(lifeline_.rank()) +
                             " waits for workers that do not join");
    }
  }

  void tell_all(std::string_view why) {
    for (Peer& peer : peers_) attend(peer, [&] { peer.out.send({.says = Says::kRefused}, why); });
    const auto until = Clock::now() + 5s;
    while (!all_is_sent() && Clock::now() < until) lifeline_.wait_activity(until);
  }

  // Who waits for an answer is not silent; who is need not have closed its connection.
  void leave_out_silent() {
    const auto wants = [](const Peer& peer) { return peer.wants.has_value(); };
    if (std::ranges::none_of(peers_, wants)) return;
    const auto since = Clock::now() - timeout_;
    for (Peer& peer : peers_)
      if (peer.joined && !wants(peer) && peer.pushed.empty() && peer.heard < since) lose(peer);
  }

  void lose(Peer& peer) {
    peer.gone = true;
    peer.joined = false;
    shard_.leave(peer.rank, true);
  }

  // A worker that is lost costs itself alone.
  template <typename Work>
  void attend(Peer& peer, const Work& work) try {
    if (!peer.gone) work();
  } catch (const PeerLost&) {
    lose(peer);
  }

  bool hear_all() {
    bool heard = false;
    for (Peer& peer : peers_) attend(peer, [&] { heard |= hear(peer); });
    return heard;
  }

  bool hear(Peer& peer) {
    if (!peer.ear.valid())
      peer.ear =
          lifeline_.receive(note_operation(), peer.rank, sizeof(Note) + shard_.push_capacity());
    if (!peer.ear.test()) return false;
    const Handle message = std::exchange(peer.ear, {});
    peer.heard = Clock::now();
    try {
      const auto [note, frame] = read_note(message.received(peer.rank));
      take(peer, note, frame);
    } catch (const PeerLost&) {
      throw;
    } catch (const Error& error) {
      peer.out.send({.says = Says::kRefused}, error.what());
    }
    return true;
  }

  void take(Peer& peer, const Note& note, ConstByteSpan frame) {
    switch (note.says) {
      case Says::kJoin:
        return join(peer, note.signature);
      case Says::kPush:
        shard_.push(peer.rank, note.clock, frame);
        return peer.pushed.push_back(note.clock);
      case Says::kPull:
        peer.wants = note.clock;
        return;
      case Says::kLeave:
        peer.joined = false;
        return shard_.leave(peer.rank);
      default:
        throw WireError("parameter server: a message of another kind");
    }
  }

  void join(Peer& peer, std::uint64_t signature) {
    if (signature != shard_.signature())
      throw InvalidArgument("rank " + std::to_string(lifeline_.rank()) +
                            " serves another model, or with other options");
    const std::uint32_t clock = shard_.join(peer.rank);
    peer.joined = true;
    peer.out.send({.says = Says::kJoined, .clock = clock});
  }

  void answer(Peer& peer) {
    while (peer.pushed.size() > shard_.waiting(peer.rank)) {
      peer.out.send({.says = Says::kTaken, .clock = peer.pushed.front()});
      peer.pushed.pop_front();
      peer.heard = Clock::now();
    }
    if (!peer.wants.has_value() || !shard_.may_pull(peer.rank, *peer.wants)) return;
    const std::uint32_t clock = *std::exchange(peer.wants, std::nullopt);
    peer.heard = Clock::now();
    peer.out.send({.says = Says::kWeights, .clock = clock}, shard_.pull_capacity(),
                  [&](ByteSpan space) { return shard_.pull(peer.rank, clock, space); });
  }

  bool all_is_sent() {
    bool sent = true;
    for (Peer& peer : peers_) attend(peer, [&] { sent &= peer.out.is_empty(); });
    return sent;
  }

  Transport& lifeline_;
  ParameterShard& shard_;
  std::chrono::milliseconds timeout_;
  std::deque<Peer> peers_;
};

}  // namespace

void serve(Transport& lifeline, ParameterShard& shard, std::chrono::milliseconds timeout) {
  Serving(lifeline, shard, timeout).run();
}

}  // namespace tersor
