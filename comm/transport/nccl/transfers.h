// What the handles of operations on NCCL hold.
#pragma once

#include <tersor/transport.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/nccl/fabric.h"
#include "comm/transport/nccl/lane.h"

namespace tersor::nccl {

/// Device memory: queued as soon as it is made; waiting for it is a wait of its stream.
class QueuedTransfer final : public Transfer {
 public:
  QueuedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Lane> lane,
                 const Operation& operation, int ranks);
  ~QueuedTransfer() override;
  QueuedTransfer(const QueuedTransfer&) = delete;
  QueuedTransfer& operator=(const QueuedTransfer&) = delete;

  /// Memory for what comes, until the end of this handle.
  Block& receive_into(std::size_t bytes);
  void set_received(int rank, ConstByteSpan bytes);

  /// The stream to queue on, behind what is queued on the operation's.
  StreamView enter();
  /// Everything is queued.
  void leave();

  bool test() override;
  void wait_synchronize() override { test(); }
  ConstByteSpan received(int rank) const override;
  int source() const override;

 private:
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Lane> lane_;
  Operation operation_;
  std::vector<ConstByteSpan> received_;
  Block* block_ = nullptr;
  std::optional<kernels::Event> queued_;
  bool waits_ = false;   // the stream has still to be held for the event
  bool failed_ = false;  // what is queued may go on without anybody who waits for it
};

/// Host memory: all ranks' bytes by way of pinned memory and the device. The host waits.
class StagedTransfer final : public Transfer {
 public:
  StagedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Lane> lane,
                 const Operation& operation, std::size_t bytes);
  ~StagedTransfer() override { staging_.free = true; }
  StagedTransfer(const StagedTransfer&) = delete;
  StagedTransfer& operator=(const StagedTransfer&) = delete;

  Staging& staging() { return staging_; }
  void set_received(std::vector<ConstByteSpan> slots) { received_ = std::move(slots); }

  bool test() override;
  void wait_synchronize() override;
  ConstByteSpan received(int rank) const override;
  int source() const override;

 private:
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Lane> lane_;
  Operation operation_;
  Clock::time_point deadline_;
  Staging& staging_;
  std::vector<ConstByteSpan> received_;
};

/// A message of up to `capacity` bytes and its length, as it lies in a staging.
struct Slot {
  static constexpr std::size_t kHead = 16;
  static std::size_t bytes(std::size_t capacity) { return kHead + (capacity + 15) / 16 * 16; }
  static void write(ByteSpan slot, ConstByteSpan message);
  /// Throws TransportError for a length that the slot cannot hold.
  static ConstByteSpan read(ConstByteSpan slot);
};

}  // namespace tersor::nccl
