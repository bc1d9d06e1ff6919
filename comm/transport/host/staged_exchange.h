// Exchanges of device memory; staging.h says how.
#pragma once

#include "comm/transport/host/exchange.h"
#include "comm/transport/host/staging.h"

namespace tersor::host {

/// An exchange whose payloads lie on a device: their copies are sent, and copies of what came are
/// received. Without payloads, a barrier: of what is queued on the streams.
class StagedExchange final : public HostExchange {
 public:
  StagedExchange(Staging& staging, const Start& start, std::size_t receives);
  ~StagedExchange() override;

  void begin() override;
  bool step() override;
  std::vector<int> missing() const override;
  bool copying() const override { return copies_.going_down(); }

 private:
  void copy_down();
  void copy_down(Outgoing& message, StreamView stream);
  bool move();
  void copy_up();
  bool must_go_up(const Incoming& incoming) const;
  void copy_up(Incoming& incoming, StreamView stream);

  Copies copies_;
  bool came_down_ = false;
};

}  // namespace tersor::host
