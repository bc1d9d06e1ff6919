// Messages between processes over TCP connections of our own, each made when a pair of ranks first
// needs it, by a thread that does nothing else. Messages are moved by whoever calls this wire,
// without waiting: from their memory into the system's, and from there into a block, whoever waits
// for it, so that what was sent always leaves.
#pragma once

#include <tersor/network.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/tcp/lane.h"
#include "comm/transport/tcp/switchboard.h"

namespace tersor::tcp {

/// Whether this is still the process in which it was made, or one that was forked from it: that has
/// the memory and the descriptors, but neither the threads nor a rank of its own.
class Process {
 public:
  Process();
  /// Costs nothing but a look at memory.
  bool is_this() const;

 private:
  const unsigned forks_;
};

class TcpWire final : public Wire {
 public:
  /// A payload of up to so many bytes is copied unless it leaves at once.
  static constexpr std::size_t kCopiedBytes = 64 * 1024 - sizeof(MessageHead);

  explicit TcpWire(Place place);
  ~TcpWire() override;

  Traits traits() const override {
    return {.rests = true, .tells_losses = true, .copied_bytes = kCopiedBytes};
  }
  int rank() const override { return place_.rank; }
  int ranks() const override { return static_cast<int>(place_.endpoints.size()); }
  std::vector<int> host_names() const override { return place_.host_names; }

  void start(Events events) override;
  bool end(Parting parting) override;
  void send(int peer, MessageHead head, Payload payload) override;
  bool poll() override;
  bool quiet() const override;
  void rest(int alarm, Clock::time_point until) const override;
  /// Not in a process that was forked from the transport's.
  bool running() const override { return process_.is_this(); }
  void check_thread() override;
  bool shows_its_end_to(int peer) const override;
  void note_poisoned() override;

  /// Callers that have not proven who they are.
  std::size_t strangers() const { return switchboard_ ? switchboard_->strangers() : 0; }
  /// Whether others may yet call.
  bool listens() const { return switchboard_ != nullptr && switchboard_->listens(); }
  /// Connections that are open.
  std::size_t connections() const;

 private:
  struct Peer;
  struct Loss {
    int peer;
    std::vector<std::shared_ptr<Job>> dropped;  ///< what was under way to it
  };

  std::unique_ptr<Peer> make_peer(int rank);
  Lane::Owner owner_of(Peer& peer, std::size_t lane);
  Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }
  static void read_rest(Peer& peer);
  void lose(Peer& peer, const std::string& cause);
  void post(Peer& peer, const MessageHead& head, Payload payload);
  bool move();
  bool take_connections();  // whether there were any
  void tell_done();
  bool tell_news();
  bool flushed() const;
  template <typename Visitor>
  void for_each_lane(Visitor&& visit) const;

  const Process process_;
  Place place_;
  Events events_;
  Reactor reactor_;
  std::unique_ptr<Switchboard> switchboard_;
  std::vector<std::shared_ptr<Job>> done_;    // not yet told
  std::deque<Arrival> news_;                  // not yet told, in order
  std::deque<Loss> losses_;                   // likewise, behind all news
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; of this one: null
};

}  // namespace tersor::tcp
