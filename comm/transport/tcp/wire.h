// Messages between processes over TCP connections. A connection is made on first use by a pair of
// ranks, on a dedicated thread. The callers of this wire move the messages without waiting: from
// the caller's memory into the system's, and on the receiver into a block. Receiving never depends
// on a posted receive, so sent messages always leave.
#pragma once

#include <tersor/network.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/tcp/connection.h"
#include "comm/transport/tcp/connection_manager.h"

namespace tersor::tcp {

/// Detects forks. A forked process has the memory and the descriptors, but no threads and no rank
/// of its own.
class ForkGuard {
 public:
  ForkGuard();
  /// A cheap check of memory.
  bool is_same_process() const;

 private:
  const unsigned forks_;
};

class TcpWire final : public Wire {
 public:
  /// Payloads up to this size are copied unless sent at once.
  static constexpr std::size_t kCopiedBytes = 64 * 1024 - sizeof(MessageHead);

  explicit TcpWire(RankAddress address);
  ~TcpWire() override;

  Traits traits() const override {
    return {.waiting = Waiting::kRest,
            .reports_losses = true,
            .borrows = true,
            .copied_bytes = kCopiedBytes};
  }
  int rank() const override { return address_.rank; }
  int ranks() const override { return static_cast<int>(address_.endpoints.size()); }
  std::vector<int> host_names() const override { return address_.host_names; }

  void start(Events events) override;
  bool end(Shutdown shutdown) override;
  void send(int peer, MessageHead head, Payload payload) override;
  void keep(int peer, const Job* job) override;
  bool poll() override;
  bool quiet() const override;
  void rest(int alarm, Clock::time_point until) const override;
  /// False in a process forked from the transport's process.
  bool running() const override { return fork_guard_.is_same_process(); }
  void check_thread() override;
  bool exit_is_visible_to(int peer) const override;
  std::string missing_message_reason(int peer) const override;
  void record_abort() override;

 private:
  struct Peer;
  struct Loss {
    int peer;
    std::vector<std::shared_ptr<Job>> dropped;  ///< sends under way to the peer
  };

  std::unique_ptr<Peer> make_peer(int rank);
  Connection::Owner owner_of(Peer& peer, std::size_t connection);
  Peer& peer(int rank) const { return *peers_[static_cast<std::size_t>(rank)]; }
  static void drain(Peer& peer);
  void on_lost(Peer& peer, const std::string& cause);
  void post(Peer& peer, const MessageHead& head, Payload payload);
  bool make_progress();
  bool attach_connections();  // returns true if there were any
  void report_done();
  bool report_arrivals();
  bool flushed() const;
  template <typename Visitor>
  void for_each_connection(Visitor&& visit) const;

  const ForkGuard fork_guard_;
  RankAddress address_;
  Events events_;
  Reactor reactor_;
  std::unique_ptr<ConnectionManager> connection_manager_;
  std::vector<std::shared_ptr<Job>> done_;    // notifications to deliver
  std::deque<Arrival> arrivals_;              // messages to deliver, in order
  std::deque<Loss> losses_;                   // losses to deliver, after all messages
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; null for this rank
};

}  // namespace tersor::tcp
