// What the handles of operations on NCCL hold.
#pragma once

#include <tersor/align.h>
#include <tersor/transport.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/transport/nccl/fabric.h"
#include "comm/transport/nccl/queue.h"

namespace tersor::nccl {

/// What all of them have: whose they are, and what came from each rank.
class NcclTransfer : public Transfer {
 public:
  NcclTransfer(const NcclTransfer&) = delete;
  NcclTransfer& operator=(const NcclTransfer&) = delete;

  void set_received(int rank, ConstByteSpan bytes) {
    received_[static_cast<std::size_t>(rank)] = bytes;
  }
  ConstByteSpan received(int rank) const override {
    return received_.at(static_cast<std::size_t>(rank));
  }
  int source() const override;

 protected:
  NcclTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
               const Operation& operation, int ranks)
      : fabric_(std::move(fabric)),
        queue_(std::move(queue)),
        operation_(operation),
        received_(static_cast<std::size_t>(ranks)) {}

  const std::shared_ptr<Fabric> fabric_;
  const std::shared_ptr<Queue> queue_;
  const Operation operation_;

 private:
  std::vector<ConstByteSpan> received_;
};

/// Device memory: queued as soon as it is made; waiting for it is a wait of its stream.
class QueuedTransfer final : public NcclTransfer {
 public:
  QueuedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
                 const Operation& operation, int ranks)
      : NcclTransfer(std::move(fabric), std::move(queue), operation, ranks) {}
  ~QueuedTransfer() override;

  /// Memory for what comes, until the end of this handle.
  DeviceBlock& receive_into(std::size_t bytes);

  /// The stream to queue on, behind what is queued on the operation's.
  StreamView enter();
  /// Everything is queued.
  void leave();

  bool test() override;
  void wait_synchronize() override { test(); }

 private:
  DeviceBlock* block_ = nullptr;
  std::optional<kernels::Event> queued_;
  bool waits_ = false;   // the stream has still to be held for the event
  bool failed_ = false;  // what is queued may go on without anybody who waits for it
};

/// Host memory: all ranks' bytes by way of pinned memory and the device. The host waits.
class RelayedTransfer final : public NcclTransfer {
 public:
  RelayedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
                  const Operation& operation, int ranks, std::size_t bytes);
  ~RelayedTransfer() override { relay_.free = true; }

  Relay& relay() { return relay_; }

  bool test() override;
  void wait_synchronize() override;
  ConstByteSpan received(int rank) const override;

 private:
  const Clock::time_point deadline_;
  Relay& relay_;
};

/// A message of up to `capacity` bytes and its length, as it lies in a relay.
struct SizedMessage {
  static constexpr std::size_t kHead = 16;
  static std::size_t bytes(std::size_t capacity) { return kHead + align_up(capacity, 16); }
  static void write(ByteSpan memory, ConstByteSpan message);
  /// Throws TransportError for a length that the memory cannot hold.
  static ConstByteSpan read(ConstByteSpan memory);
};

}  // namespace tersor::nccl
