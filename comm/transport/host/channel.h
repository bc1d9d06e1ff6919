// One channel of one rank: what its operations share, who is under way, deadlines and faults.
#pragma once

#include <tersor/transport.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/host/world.h"

namespace tersor::host {

class Channel;

/// What a transfer begins with: where, which operation, and what its ranks must all say of it.
struct Start {
  std::shared_ptr<Channel> channel;
  const Operation& operation;
  Envelope envelope;
};

/// An operation as a state machine: `begin` posts its first messages, `step` takes what has come
/// and posts what that allows. Never waits by itself.
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
  /// True once done; not called again after that.
  virtual bool step() = 0;
  /// Ranks whose messages have not come, of those that are waited for now.
  virtual std::vector<int> missing() const = 0;
  /// Whether it waits for copies of a device, of whose end nobody tells.
  virtual bool copying() const { return false; }
  /// On a lifeline: ends it, unless it is done, with what `check` then throws.
  virtual void end(std::exception_ptr /*error*/) {}
  virtual void check() const {}

  const Operation& operation() const { return operation_; }
  Clock::time_point deadline() const { return deadline_; }
  bool done() const { return done_; }
  Channel& channel() const { return *channel_; }
  /// "allreduce on rank 2: …"
  std::string cause(std::string_view why) const;
  /// Ends it on all ranks. The cause.
  std::string raise(std::string_view why) const;

 protected:
  const Envelope& envelope() const { return envelope_; }
  /// For one that does a part of this one's work.
  Start part_of(const Operation& operation) const { return {channel_, operation, envelope_}; }
  void require_done() const;
  /// Prepares a batch of this operation.
  void address(Batch& batch, std::uint32_t part) const;
  void cancel(Batch& batch) const;

 private:
  friend class Channel;

  std::shared_ptr<Channel> channel_;
  Operation operation_;
  Envelope envelope_;
  Clock::time_point deadline_;
  bool done_ = false;
};

/// A box of a world, and the operations that go by it. One thread at a time, but for `wake`, and
/// for what the world lets any thread do.
class Channel {
 public:
  /// Of all ranks; and of a box that `World::join` made, which it releases.
  explicit Channel(std::shared_ptr<World> world) : Channel(world, world->everybody()) {}
  Channel(std::shared_ptr<World> world, Box& box);
  ~Channel() { world_->release(box_); }

  World& world() const { return *world_; }
  Box& box() const { return box_; }
  int rank() const { return box_.rank; }
  int ranks() const { return static_cast<int>(box_.members.size()); }
  /// How errors name a rank: "rank 2"; on a split also its number in the whole.
  std::string name(int rank) const { return box_.name(rank); }
  bool one_host() const { return one_host_; }

  /// Starts the messages of a batch. A message that is not what the batch expects (`disagreement`)
  /// never arrives: it ends in a fault.
  void post(Batch& batch) { world_->post(box_, batch); }
  /// A channel of `members` (ranks of this one, ascending, the own among them), numbered anew.
  std::shared_ptr<Channel> join(std::span<const int> members, Family::Kind kind) {
    return std::make_shared<Channel>(world_, world_->join(box_, members, kind));
  }

  /// Throws TransportError where the transport is poisoned.
  void check(std::string_view name);
  std::string fault() const { return world_->fault(box_); }
  Handle start(std::unique_ptr<HostTransfer> transfer);
  bool test(HostTransfer& transfer);
  void wait(HostTransfer& transfer);
  void progress();
  void wait_activity(Clock::time_point until);
  void wake();
  void forget(HostTransfer& transfer) { std::erase(under_way_, &transfer); }

 private:
  /// Moves what is under way at the world.
  void poll();
  /// Returns as soon as a batch was closed, a fault was raised or `wake` was called since the last
  /// `poll`, or `until` has come. May return early.
  void sleep(Clock::time_point until) { world_->wait(box_, seen_, until); }
  void move();
  void step_all();
  /// True where that ended one.
  bool step_ready();
  /// Steps one that is under way; true where that ended it.
  bool step(HostTransfer& transfer);
  bool advance(HostTransfer& transfer);
  void end_late(HostTransfer& transfer);
  std::string why_late(const HostTransfer& transfer);
  HostTransfer* most_urgent() const;
  Clock::time_point sleep_until(Clock::time_point until) const;

  std::shared_ptr<World> world_;
  Box& box_;
  std::uint32_t seen_ = 0;                // rings of the bell that were looked after
  const bool one_host_;                   // all ranks share it
  std::vector<HostTransfer*> under_way_;  // in the order of starting
  std::uint64_t completions_ = 0;         // operations that were done, ever
  std::uint64_t reported_ = 0;            // of these, before the last return of wait_activity
  std::atomic<bool> woken_{false};
};

}  // namespace tersor::host
