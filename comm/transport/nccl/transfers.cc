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
    if (!operation_.in_order && (must_wait_ || failed_))
      queue_->order(queue_->wire(), operation_.stream);
    if (block_ != nullptr && !must_wait_ && !failed_) queue_->pool().return_block(*block_);
    if (!must_wait_ && queued_.has_value()) queue_->return_event(std::move(*queued_));
  } catch (const std::exception&) {
    // the block stays lent during the queue's lifetime
  }
}

DeviceBlock& QueuedTransfer::receive_into(std::size_t bytes) {
  block_ = &queue_->pool().take(bytes, operation_.stream);
  return *block_;
}

StreamView QueuedTransfer::begin_queueing() {
  failed_ = true;
  if (operation_.in_order) return operation_.stream;
  queue_->order(operation_.stream, queue_->wire());
  return queue_->wire();
}

void QueuedTransfer::end_queueing() {
  failed_ = false;
  if (operation_.in_order) return;
  queued_.emplace(queue_->take_event());
  queued_->record(queue_->wire());
  must_wait_ = true;
}

bool QueuedTransfer::test() {
  // before the check: after an error, queued NCCL kernels may still read the caller's memory
  if (must_wait_) queued_->hold(operation_.stream);
  watcher_->check(operation_.name);
  must_wait_ = false;
  return true;
}

StagedTransfer::StagedTransfer(std::shared_ptr<Watcher> watcher, std::shared_ptr<Queue> queue,
                               const Operation& operation, int ranks, std::size_t bytes)
    : NcclTransfer(std::move(watcher), std::move(queue), operation, ranks),
      deadline_(Clock::now() + operation.timeout),
      staging_(queue_->take_staging(bytes)) {}

bool StagedTransfer::test() {
  watcher_->check(operation_.name);
  if (queue_->is_signalled(staging_)) return true;
  if (Clock::now() < deadline_) return false;
  watcher_->fail(std::string(operation_.name) + " on " + watcher_->rank_name() +
                 ": not all ranks joined within " + std::to_string(operation_.timeout.count()) +
                 " ms");
  watcher_->check(operation_.name);
  return false;
}

void StagedTransfer::wait_synchronize() {
  while (!test()) kernels::sleep_between_polls();
}

ConstByteSpan StagedTransfer::received(int rank) const {
  const ConstByteSpan memory = NcclTransfer::received(rank);
  return memory.empty() ? memory : SizedMessage::read(memory);
}

void SizedMessage::write(ByteSpan memory, ConstByteSpan message) {
  const std::uint64_t length = message.size();
  std::memcpy(memory.data(), &length, sizeof length);
  if (length != 0) std::memcpy(memory.data() + kHeaderBytes, message.data(), message.size());
}

ConstByteSpan SizedMessage::read(ConstByteSpan memory) {
  std::uint64_t length = 0;
  std::memcpy(&length, memory.data(), sizeof length);
  if (length > memory.size() - kHeaderBytes)
    throw TransportError("a message of " + std::to_string(length) + " bytes does not fit into " +
                         std::to_string(memory.size() - kHeaderBytes));
  return memory.subspan(kHeaderBytes, length);
}

}  // namespace tersor::nccl
