// Makes the connections of a rank, on a thread of its own: calls others, takes their calls, and
// lets both ends prove who they are. Without it, a rank that computes could not be reached for the
// first time, not even to be told that others gave up. The thread sleeps while nothing is to be
// made, and ends once there are all connections.
//
// Both ends may call at once: then the lower rank's call counts. Strangers, who have not yet proven
// that they are of this world, are bounded in number and time.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/transport/tcp/calls.h"
#include "comm/transport/tcp/reactor.h"
#include "comm/transport/tcp/socket.h"

namespace tersor::tcp {

/// A rank among others that know of each other.
struct Place {
  int rank = 0;
  std::vector<Endpoint> endpoints;  ///< where each rank listens
  std::vector<int> host_names;      ///< as Wire::host_names
  Secret secret;
  std::size_t lanes = 1;  ///< connections of each pair
  TcpProtection protect = TcpProtection::kNone;
  Clock::time_point patience = {};     ///< until when a rank may begin to listen
  Clock::duration timeout = {};        ///< for the network to let a first call through
  std::unique_ptr<Listener> listener;  ///< this rank's own
};

/// Which of the connections with which rank.
struct LaneName {
  int peer = 0;
  std::size_t lane = 0;
};

/// A connection that both ends have proven; or, without a socket, why there will be none.
struct Connection {
  LaneName name;
  std::optional<Socket> socket = {};
  std::string failure = {};
};

class Switchboard final : public Watched {
 public:
  /// The place outlives it; its listener goes here. `wire` is interrupted where there is something
  /// in `made`. Throws TransportError where the system has no more descriptors or threads.
  Switchboard(Place& place, Reactor& wire);
  ~Switchboard() override;

  /// A connection is needed. It comes in `made`, like those that others asked for.
  void want(LaneName name);
  std::vector<Connection> made();

  std::size_t strangers() const { return strangers_count_.load(); }
  /// Whether others may call.
  bool listens() const { return serving_.load(); }

  bool act() override;
  bool busy() const override { return more_; }

  // What calls tell. May destroy the incoming call that is told of, not the outgoing one.
  /// The caller has proven that it is of this world.
  void admit(IncomingCall& call);
  /// The caller speaks something else, does not know the secret, or hung up.
  void drop(IncomingCall& call);
  void answered(OutgoingCall& call, Verdict verdict);
  void failed(OutgoingCall& call, const std::string& why);
  // And what they ask.
  Reactor& reactor() { return reactor_; }
  const Secret& secret() const { return place_.secret; }
  TcpProtection protection() const { return place_.protect; }
  std::uint32_t rank() const { return static_cast<std::uint32_t>(place_.rank); }

 private:
  /// One connection, as far as it is made.
  struct ConnectionState {
    std::unique_ptr<OutgoingCall> call = {};
    bool connected = false;
  };

  void serve();
  void take_wishes();
  void begin_call(LaneName name);
  Clock::time_point next_deadline() const;
  void look_at_clock();
  void drop_first() {
    if (!strangers_.empty()) strangers_.pop_front();
  }
  bool accept();
  ConnectionState& link(LaneName name) {
    return links_[static_cast<std::size_t>(name.peer) * place_.lanes + name.lane];
  }
  Hello hello_to(LaneName name) const;
  Verdict judge(const Hello& caller);
  void put_away(LaneName name);
  void finish(LaneName name, Socket socket);
  void tell(Connection connection);

  // Of the thread.
  const Place& place_;
  Reactor reactor_;
  std::unique_ptr<Listener> listener_;
  std::vector<ConnectionState> links_;                   // by peer and lane
  std::size_t missing_;                                  // of these, not connected
  std::list<std::unique_ptr<IncomingCall>> strangers_;   // in the order of coming
  std::vector<std::unique_ptr<OutgoingCall>> finished_;  // calls that may still be acting
  bool more_ = false;                                    // may call
  bool crowded_ = false;                                 // there are no descriptors left

  // Of any thread.
  Reactor& wire_;
  std::atomic<std::size_t> strangers_count_{0};
  std::atomic<bool> serving_{true};
  std::atomic<bool> any_made_{false};
  std::mutex mutex_;
  std::vector<LaneName> wishes_;
  std::vector<Connection> made_;

  std::jthread thread_;
};

}  // namespace tersor::tcp
