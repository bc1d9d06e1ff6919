// One rank's messages on one channel of an in-process world.
#pragma once

#include <memory>
#include <vector>

#include "comm/transport/host/postman.h"
#include "comm/transport/inproc/world.h"

namespace tersor::inproc {

class InProcessPostman final : public host::Postman {
 public:
  InProcessPostman(std::shared_ptr<World> world, Mailbox& box)
      : world_(std::move(world)), box_(box) {}

  int rank() const override { return box_.rank; }
  int ranks() const override { return static_cast<int>(box_.group->members.size()); }
  std::string name(int rank) const override { return box_.group->name(rank); }
  std::vector<int> hosts() const override { return world_->hosts(*box_.group); }
  TransferCounters counters() const override { return world_->counters(box_); }
  host::BlockPools& pools() override { return world_->pools(); }

  void post(host::Batch& batch) override;
  void cancel(host::Batch& batch) override { world_->cancel(box_, batch); }

  void progress() override;
  void wait(Clock::time_point until) override { world_->wait(box_, seen_, until); }
  void wake() override { box_.bell.ring(); }

  void raise(const std::string& cause) override { world_->raise(cause); }
  bool faulty() const override { return world_->faulty(); }
  std::string fault() const override { return world_->fault(); }
  int culprit(int peer, std::uint32_t tag, std::chrono::milliseconds) const override {
    return world_->culprit(box_, peer, tag);
  }

  std::shared_ptr<Postman> join(std::span<const int> members) override;
  void leave() override { world_->leave(box_); }

 private:
  void pack(const host::Batch& batch);

  std::shared_ptr<World> world_;
  Mailbox& box_;
  std::uint32_t seen_ = 0;             // rings of the bell that were looked after
  std::vector<host::Block> payloads_;  // of the batch that is being posted
};

}  // namespace tersor::inproc
