// One rank's messages on one channel. One thread at a time, but for `wake`, `raise`, `faulty`,
// `fault` and `counters`, which any thread may call.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/transport/host/world.h"

namespace tersor::host {

class Endpoint {
 public:
  explicit Endpoint(std::shared_ptr<World> world) : Endpoint(world, world->everybody()) {}
  Endpoint(std::shared_ptr<World> world, Box& box) : world_(std::move(world)), box_(box) {}
  ~Endpoint() { world_->release(box_); }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const { return box_.rank; }
  int ranks() const { return static_cast<int>(box_.members.size()); }
  /// How errors name a rank: "rank 2"; on a split also its number in the whole.
  std::string name(int rank) const { return box_.name(rank); }
  /// As Transport::hosts.
  std::vector<int> hosts() const { return world_->hosts(box_); }
  TransferCounters counters() const { return world_->counters(box_); }
  const Wire::Traits& traits() const { return world_->traits(); }
  /// Memory that outlives whatever the network still reads or writes.
  BlockPools& pools() const { return world_->pools(); }

  /// Starts the messages of a batch. A message that is not what the batch expects (`disagreement`)
  /// never arrives: it ends in `raise`.
  void post(Batch& batch) { world_->post(box_, batch); }
  /// Forgets a batch that is not closed; its spans and its memory are not touched any more.
  void cancel(Batch& batch) { world_->cancel(box_, batch); }

  /// Ranks that a batch has something for which has not left.
  std::vector<int> unsent(const Batch& batch) const { return world_->unsent(batch); }

  /// Moves what is under way; never waits.
  void progress() {
    seen_ = box_.bell.rings();
    world_->progress(box_);
  }
  /// Returns as soon as a batch was closed, a fault was raised or `wake` was called since the last
  /// `progress`, or `until` has come. May return early.
  void wait(Clock::time_point until) { world_->wait(box_, seen_, until); }
  void wake() { box_.bell.ring(); }

  /// Records the cause of a fault and tells all ranks of all channels. The first cause stays.
  void raise(const std::string& cause) { world_->raise(cause); }
  bool faulty() const { return world_->faulty(); }
  /// The first cause; empty where there is none.
  std::string fault() const { return world_->fault(); }
  Culprits culprits(const Question& question, std::span<const int> late) {
    return world_->culprits(box_, question, late);
  }

  /// A channel of `members` (ranks of this one, ascending, the own among them), numbered anew.
  std::unique_ptr<Endpoint> join(std::span<const int> members) {
    return std::make_unique<Endpoint>(world_, world_->join(box_, members));
  }
  /// This rank sends and takes no more: whoever still waits for it is told. Called once.
  void leave() { world_->leave(box_); }

 private:
  std::shared_ptr<World> world_;
  Box& box_;
  std::uint32_t seen_ = 0;  // rings of the bell that were looked after
};

}  // namespace tersor::host
