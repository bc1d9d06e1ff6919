// The transfers behind the handles of NCCL operations.
#pragma once

#include <tersor/align.h>
#include <tersor/transport.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/transport/nccl/queue.h"
#include "comm/transport/nccl/watcher.h"

namespace tersor::nccl {

/// The common part of all transfers: the owner, and the received bytes of each rank.
class NcclTransfer : public Transfer {
 public:
  NcclTransfer(std::shared_ptr<Watcher> watcher, std::shared_ptr<Queue> queue,
               const Operation& operation, int ranks)
      : watcher_(std::move(watcher)),
        queue_(std::move(queue)),
        operation_(operation),
        received_(static_cast<std::size_t>(ranks)) {}
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
  const std::shared_ptr<Watcher> watcher_;
  const std::shared_ptr<Queue> queue_;
  const Operation operation_;

 private:
  std::vector<ConstByteSpan> received_;
};

/// An operation on device memory, queued at creation. Waiting for the handle makes the stream wait.
class QueuedTransfer final : public NcclTransfer {
 public:
  using NcclTransfer::NcclTransfer;
  ~QueuedTransfer() override;

  /// Returns memory for received bytes, valid until the end of this handle.
  DeviceBlock& receive_into(std::size_t bytes);

  /// Returns the stream to queue on, ordered after the work on the operation's stream.
  StreamView begin_queueing();
  /// Called after all work is queued.
  void end_queueing();

  bool test() override;
  void wait_synchronize() override { test(); }

 private:
  DeviceBlock* block_ = nullptr;
  std::optional<kernels::Event> queued_;
  bool must_wait_ = false;  // True if the stream does not wait for the event yet
  bool failed_ = false;     // True if queued work may continue without a waiting handle
};

/// An operation on host memory. The bytes of all ranks are sent through pinned memory and the
/// device. The host waits.
class StagedTransfer final : public NcclTransfer {
 public:
  StagedTransfer(std::shared_ptr<Watcher> watcher, std::shared_ptr<Queue> queue,
                 const Operation& operation, int ranks, std::size_t bytes);
  ~StagedTransfer() override { staging_.free = true; }

  StagingBuffers& staging() { return staging_; }

  bool test() override;
  void wait_synchronize() override;
  ConstByteSpan received(int rank) const override;

 private:
  const Clock::time_point deadline_;
  StagingBuffers& staging_;
};

/// A message of up to `capacity` bytes in a relay: the length, then the bytes.
struct SizedMessage {
  static constexpr std::size_t kHeaderBytes = 16;
  static std::size_t bytes(std::size_t capacity) { return kHeaderBytes + align_up(capacity, 16); }
  static void write(ByteSpan memory, ConstByteSpan message);
  /// Throws TransportError if the length exceeds the memory.
  static ConstByteSpan read(ConstByteSpan memory);
};

}  // namespace tersor::nccl
