// One rank's messages on one channel between processes.
#pragma once

#include <memory>

#include "comm/transport/host/postman.h"
#include "comm/transport/processes/world.h"

namespace tersor::processes {

class ProcessPostman final : public host::Postman {
 public:
  ProcessPostman(std::shared_ptr<World> world, Box& box) : world_(std::move(world)), box_(box) {}

  int rank() const override { return box_.rank; }
  int ranks() const override { return static_cast<int>(box_.members.size()); }
  std::string name(int rank) const override { return box_.name(rank); }
  TransferCounters counters() const override { return world_->counters(box_); }
  std::vector<int> hosts() const override { return world_->hosts(box_); }
  host::BlockPools& pools() override { return world_->pools(); }
  std::size_t least_device_bytes() const override { return world_->traits().least_device_bytes; }

  void post(host::Batch& batch) override { world_->post(box_, batch); }
  void cancel(host::Batch& batch) override { world_->cancel(box_, batch); }

  void progress() override {
    seen_ = box_.bell.rings();
    world_->progress();
  }
  void wait(Clock::time_point until) override { world_->wait(box_, seen_, until); }
  void wake() override { box_.bell.ring(); }

  void raise(const std::string& cause) override { world_->raise(cause); }
  bool faulty() const override { return world_->faulty(); }
  std::string fault() const override { return world_->fault(); }
  int culprit(int peer, std::uint32_t tag, std::chrono::milliseconds patience) const override {
    return world_->culprit(box_, {peer, tag, patience});
  }

  std::shared_ptr<Postman> join(std::span<const int> members) override {
    return std::make_shared<ProcessPostman>(world_, world_->join(box_, members));
  }
  void leave() override { world_->leave(box_); }

 private:
  std::shared_ptr<World> world_;
  Box& box_;
  std::uint32_t seen_ = 0;  // rings of the bell that were looked after
};

}  // namespace tersor::processes
