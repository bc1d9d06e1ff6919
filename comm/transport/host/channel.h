// What the operations of one channel share: the endpoint, who is under way, deadlines and faults.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/host/endpoint.h"

namespace tersor::host {

class Channel;

/// An operation as a state machine: `begin` posts its first messages, `step` takes what has come
/// and posts what that allows. Never waits by itself.
class HostTransfer : public Transfer {
 public:
  HostTransfer(std::shared_ptr<Channel> channel, const Operation& operation);
  ~HostTransfer() override;
  HostTransfer(const HostTransfer&) = delete;
  HostTransfer& operator=(const HostTransfer&) = delete;

  bool test() final;
  void wait_synchronize() final;
  ConstByteSpan received(int rank) const override;
  int source() const override;

  virtual void begin() = 0;
  /// True once done; not called again after that.
  virtual bool step() = 0;
  /// Ranks whose messages have not come, of those that are waited for now.
  virtual std::vector<int> missing() const = 0;
  /// Whether it waits for copies of a device, of whose end nobody tells.
  virtual bool copying() const { return false; }

  const Operation& operation() const { return operation_; }
  Clock::time_point deadline() const { return deadline_; }
  bool done() const { return done_; }

 protected:
  Channel& channel() const { return *channel_; }
  void require_done() const;
  /// Prepares a batch of this operation.
  void address(Batch& batch, std::uint32_t part, const Envelope& envelope) const;
  void cancel(Batch& batch) const;

 private:
  friend class Channel;

  std::shared_ptr<Channel> channel_;
  Operation operation_;
  Clock::time_point deadline_;
  bool done_ = false;
};

/// One channel of one rank. One thread at a time, but for `wake`.
class Channel {
 public:
  explicit Channel(std::shared_ptr<Endpoint> endpoint);

  Endpoint& endpoint() const { return *endpoint_; }
  const std::shared_ptr<Endpoint>& shared_endpoint() const { return endpoint_; }
  int rank() const { return endpoint_->rank(); }
  int ranks() const { return endpoint_->ranks(); }
  bool one_host() const { return one_host_; }

  /// Throws TransportError where the transport is poisoned.
  void check(std::string_view name) const;
  Handle start(std::unique_ptr<HostTransfer> transfer);
  bool test(HostTransfer& transfer);
  void wait(HostTransfer& transfer);
  void progress();
  void wait_activity(Clock::time_point until);
  void wake();
  void forget(HostTransfer& transfer);

 private:
  void move();
  void step_all();
  /// True where that ended one.
  bool step_ready();
  /// Steps one that is under way; true where that ended it.
  bool step(HostTransfer& transfer);
  [[noreturn]] void fail_late(const HostTransfer& transfer);
  std::string why_late(const HostTransfer& transfer);
  HostTransfer* most_urgent() const;
  Clock::time_point sleep_until(Clock::time_point until) const;

  std::shared_ptr<Endpoint> endpoint_;
  const bool one_host_;                   // all ranks share it
  std::vector<HostTransfer*> under_way_;  // in the order of starting
  std::uint64_t completions_ = 0;         // operations that were done, ever
  std::uint64_t reported_ = 0;            // of these, before the last return of wait_activity
  std::atomic<bool> woken_{false};
};

}  // namespace tersor::host
