// The actions that the parts of the progress engine request. The parts (Delivery, FlowControl,
// FaultDomains, Inquiry) hold the state and decide. The engine carries each action out at once. A
// test records the actions instead, and needs no network.
#pragma once

#include <tersor/network.h>

#include "comm/transport/host/channels.h"
#include "comm/transport/host/head.h"

namespace tersor::host {

class Actions {
 public:
  /// Sends a message to a world rank. Afterwards, the state may have changed: the peer may have
  /// answered.
  virtual void send(int peer, Head head, Wire::Payload payload = {}) = 0;
  /// Receives the rest of a message into `message.payload`.
  virtual void receive(IncomingMessage& message) = 0;
  /// Ends the use of a sender's memory: see Wire::keep.
  virtual void keep(int peer, const Wire::Job* job) = 0;
  /// Fails a fault domain, and announces the fault to the domain's ranks.
  virtual void fail(FaultDomain& domain, const Fault& fault) = 0;

  /// True if the calling thread may send.
  virtual bool may_send() const = 0;
  /// See Wire.
  virtual std::size_t wire_bytes(std::size_t payload_bytes) const = 0;
  virtual Clock::time_point earliest(const Wire::Arrival& arrival) const = 0;

 protected:
  ~Actions() = default;
};

/// The objects that all parts use.
struct Core {
  int rank;
  int ranks;
  Wire::Traits traits;
  SharedLock& lock;
  BlockPool& pool;
  Channels& channels;
  Actions& actions;

  /// True if the network makes progress while no thread polls.
  bool moves_alone() const {
    return traits.waiting == Wire::Waiting::kSleep ||
           traits.waiting == Wire::Waiting::kSleepAndPoll;
  }
};

}  // namespace tersor::host
