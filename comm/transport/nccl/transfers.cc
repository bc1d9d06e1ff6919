#include "comm/transport/nccl/transfers.h"

#include <tersor/error.h>

#include <cstring>

#include "kernels/device/device.h"

namespace tersor::nccl {

int NcclTransfer::source() const {
  throw InvalidArgumentError(
      "only handles of receive_any have a source, and NCCL has no receive_any");
}

// A block without a completed wait is never reused, because the network may still write to the
// block.
QueuedTransfer::~QueuedTransfer() {
  try {
    // After an exception, the caller may free memory that queued kernels still use.
    if (!operation_.in_order && (waits_ || failed_))
      queue_->order(queue_->wire(), operation_.stream);
    if (block_ != nullptr && !waits_ && !failed_) queue_->pool().give_back(*block_);
    if (!waits_ && queued_.has_value()) queue_->give_back(std::move(*queued_));
  } catch (const std::exception&) {
    // the block stays lent during the queue's lifetime
  }
}

DeviceBlock& QueuedTransfer::receive_into(std::size_t bytes) {
  block_ = &queue_->pool().take(bytes, operation_.stream);
  return *block_;
}

StreamView QueuedTransfer::enter() {
  failed_ = true;
  if (operation_.in_order) return operation_.stream;
  queue_->order(operation_.stream, queue_->wire());
  return queue_->wire();
}

void QueuedTransfer::leave() {
  failed_ = false;
  if (operation_.in_order) return;
  queued_.emplace(queue_->take_event());
  queued_->record(queue_->wire());
  waits_ = true;
}

bool QueuedTransfer::test() {
  // before the check: after an error, queued NCCL kernels may still read the caller's memory
  if (waits_) queued_->hold(operation_.stream);
  fabric_->check(operation_.name);
  waits_ = false;
  return true;
}

StagedTransfer::StagedTransfer(std::shared_ptr<Fabric> fabric, std::shared_ptr<Queue> queue,
                               const Operation& operation, int ranks, std::size_t bytes)
    : NcclTransfer(std::move(fabric), std::move(queue), operation, ranks),
      deadline_(Clock::now() + operation.timeout),
      staging_(queue_->take_staging(bytes)) {}

bool StagedTransfer::test() {
  fabric_->check(operation_.name);
  if (queue_->is_signalled(staging_)) return true;
  if (Clock::now() < deadline_) return false;
  fabric_->fail(std::string(operation_.name) + " on " + fabric_->who() +
                ": not all ranks joined within " + std::to_string(operation_.timeout.count()) +
                " ms");
  fabric_->check(operation_.name);
  return false;
}

void StagedTransfer::wait_synchronize() {
  while (!test()) kernels::rest();
}

ConstByteSpan StagedTransfer::received(int rank) const {
  const ConstByteSpan memory = NcclTransfer::received(rank);
  return memory.empty() ? memory : SizedMessage::read(memory);
}

void SizedMessage::write(ByteSpan memory, ConstByteSpan message) {
  const std::uint64_t length = message.size();
  std::memcpy(memory.data(), &length, sizeof length);
  if (length != 0) std::memcpy(memory.data() + kHead, message.data(), message.size());
}

ConstByteSpan SizedMessage::read(ConstByteSpan memory) {
  std::uint64_t length = 0;
  std::memcpy(&length, memory.data(), sizeof length);
  if (length > memory.size() - kHead)
    throw TransportError("a message of " + std::to_string(length) + " bytes does not fit into " +
                         std::to_string(memory.size() - kHead));
  return memory.subspan(kHead, length);
}

}  // namespace tersor::nccl
