// A channel of a rank: the shared state of its operations, the operations under way, deadlines and
// faults.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/host/progress_engine.h"

namespace tersor::host {

class Channel;

/// Arguments to create a transfer: the channel, the operation, and the envelope expected of all
/// ranks.
struct Start {
  std::shared_ptr<Channel> channel;
  const Operation& operation;
  Envelope envelope;
};

/// An operation as a state machine: `begin` posts the first messages, and `step` handles arrivals
/// and posts the next messages. Never blocks.
class HostTransfer : public Transfer {
 public:
  explicit HostTransfer(const Start& start);
  ~HostTransfer() override;
  HostTransfer(const HostTransfer&) = delete;
  HostTransfer& operator=(const HostTransfer&) = delete;

  bool test() final;
  void wait_synchronize() final;
  ConstByteSpan received(int /*rank*/) const override { return {}; }
  int source() const override;

  virtual void begin() = 0;
  /// Returns true when the operation is done. Not called again after returning true.
  virtual bool step() = 0;
  /// Ranks whose currently awaited messages have not arrived.
  virtual std::vector<int> missing() const = 0;
  /// True if the transfer waits for device copies, which complete without a notification.
  virtual bool copying() const { return false; }
  /// On an isolated channel: ends the operation unless already done. `check` then throws the error.
  virtual void end(std::exception_ptr /*error*/) {}
  virtual void check() const {}

  const Operation& operation() const { return operation_; }
  Clock::time_point deadline() const { return deadline_; }
  bool done() const { return done_; }
  Channel& channel() const { return *channel_; }
  /// Formats an error text: "allreduce on rank 2: …".
  std::string cause(std::string_view reason) const;
  /// Raises a fault on all ranks and returns the fault's text.
  std::string raise(std::string_view reason) const;
  /// Ends two different calls on all ranks.
  void resolve_mismatch(const Mismatch& mismatch, std::string_view reason) const;

 protected:
  const Envelope& envelope() const { return envelope_; }
  /// Arguments to create a sub-transfer of this transfer.
  Start nested_start(const Operation& operation) const { return {channel_, operation, envelope_}; }
  void require_done() const;
  /// Initializes a batch of this operation.
  void initialize(Batch& batch, std::uint32_t part) const;
  /// Sends from memory that the caller keeps until the operation ends, if the wire can end this use
  /// of the memory at any time. Otherwise, payloads without an owner are copied.
  void use_caller_memory(Batch& batch) const;
  void cancel(Batch& batch) const;

 private:
  friend class Channel;

  std::shared_ptr<Channel> channel_;
  Operation operation_;
  Envelope envelope_;
  Clock::time_point deadline_;
  bool done_ = false;
};

/// A channel and the operations using the channel. Not thread-safe, except for `wake` and for the
/// engine's thread-safe calls.
class Channel {
 public:
  /// The first constructor takes the channel of all ranks. The second takes a channel made by
  /// `Channels::join`, and the destructor releases the channel.
  explicit Channel(std::shared_ptr<ProgressEngine> engine) : Channel(engine, engine->world()) {}
  Channel(std::shared_ptr<ProgressEngine> engine, ChannelState& state);
  ~Channel() { engine_->release(state_); }

  ProgressEngine& engine() const { return *engine_; }
  ChannelState& state() const { return state_; }
  int rank() const { return state_.rank; }
  int ranks() const { return static_cast<int>(state_.members.size()); }
  /// How errors name a rank: "rank 2"; on a split followed by the world rank.
  std::string name(int rank) const { return state_.name(rank); }
  bool one_host() const { return one_host_; }

  /// Starts the messages of a batch. If a message differs from the batch's expectation
  /// (`disagreement`), the message raises a fault and is never delivered.
  void post(Batch& batch) { engine_->post(state_, batch); }
  /// Joins a channel of `members` (group ranks of this channel, ascending, this rank included),
  /// renumbered from 0.
  std::shared_ptr<Channel> join(std::span<const int> members, FaultDomain::Kind kind) {
    ChannelState& joined = engine_->lock()->channels.join(state_, members, kind);
    return std::make_shared<Channel>(engine_, joined);
  }

  /// Throws TransportError if the transport is aborted.
  void check(std::string_view name);
  Fault fault() const {
    const auto locked = engine_->lock();
    return state_.domain->fault;
  }
  Handle start(std::unique_ptr<HostTransfer> transfer);
  bool test(HostTransfer& transfer);
  void wait(HostTransfer& transfer);
  void progress();
  void wait_activity(Clock::time_point until);
  void wake();
  void remove(HostTransfer& transfer) { std::erase(active_, &transfer); }

 private:
  /// Makes progress in the engine.
  void poll();
  /// Returns as soon as a batch was closed, a fault was raised or `wake` was called since the last
  /// `poll`, or at `until`. May return early.
  void sleep(Clock::time_point until);
  void make_progress();
  void step_all();
  /// Returns true if an operation ended.
  bool step_ready();
  /// Steps an operation under way. Returns true if the operation ended.
  bool step(HostTransfer& transfer);
  bool advance(HostTransfer& transfer);
  void on_timeout(HostTransfer& transfer);
  FailedRanks diagnose_timeout(const HostTransfer& transfer);
  HostTransfer* next_to_expire() const;

  std::shared_ptr<ProgressEngine> engine_;
  ChannelState& state_;
  std::uint32_t seen_ = 0;             // event count at the last poll
  const bool one_host_;                // True if all ranks share one host
  std::vector<HostTransfer*> active_;  // in starting order
  std::uint64_t completions_ = 0;      // total number of completed operations
  std::uint64_t reported_ = 0;  // value of `completions_` at the last return of wait_activity
  std::atomic<bool> woken_{false};
};

}  // namespace tersor::host
