// What the handles of operations on NCCL hold.
#pragma once

#include <tersor/transport.h>

#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/nccl/fabric.h"
#include "comm/transport/nccl/queue.h"

namespace tersor::nccl {

/// Device memory: queued as soon as it is made; waiting for it is a wait of its stream.
class QueuedTransfer final : public Transfer {
 public:
  QueuedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
                 const Operation& operation, int ranks);
  ~QueuedTransfer() override;
  QueuedTransfer(const QueuedTransfer&) = delete;
  QueuedTransfer& operator=(const QueuedTransfer&) = delete;

  /// Memory for what comes, until the end of this handle.
  DeviceBlock& receive_into(std::size_t bytes);
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
  std::shared_ptr<Queue> queue_;
  Operation operation_;
  std::vector<ConstByteSpan> received_;
  DeviceBlock* block_ = nullptr;
  std::optional<kernels::Event> queued_;
  bool waits_ = false;   // the stream has still to be held for the event
  bool failed_ = false;  // what is queued may go on without anybody who waits for it
};

/// Host memory: all ranks' bytes by way of pinned memory and the device. The host waits.
class RelayedTransfer final : public Transfer {
 public:
  RelayedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
                  const Operation& operation, std::size_t bytes);
  ~RelayedTransfer() override { relay_.free = true; }
  RelayedTransfer(const RelayedTransfer&) = delete;
  RelayedTransfer& operator=(const RelayedTransfer&) = delete;

  Relay& relay() { return relay_; }
  void set_received(std::vector<ConstByteSpan> messages) { received_ = std::move(messages); }

  bool test() override;
  void wait_synchronize() override;
  ConstByteSpan received(int rank) const override;
  int source() const override;

 private:
  std::shared_ptr<Fabric> fabric_;
  std::shared_ptr<Queue> queue_;
  Operation operation_;
  Clock::time_point deadline_;
  Relay& relay_;
  std::vector<ConstByteSpan> received_;
};

/// A message of up to `capacity` bytes and its length, as it lies in a relay.
struct SizedMessage {
  static constexpr std::size_t kHead = 16;
  static std::size_t bytes(std::size_t capacity) { return kHead + (capacity + 15) / 16 * 16; }
  static void write(ByteSpan memory, ConstByteSpan message);
  /// Throws TransportError for a length that the memory cannot hold.
  static ConstByteSpan read(ConstByteSpan memory);
};

}  // namespace tersor::nccl
