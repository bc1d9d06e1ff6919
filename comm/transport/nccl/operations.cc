// Implements device_transport.h: operations on streams.
#include <tersor/align.h>

#include "comm/transport/arguments.h"
#include "comm/transport/nccl/device_transport.h"
#include "kernels/device/device.h"

namespace tersor::nccl {
namespace {

constexpr std::size_t kAlignment = 256;  // of received messages
// Registration does not pay off for shorter messages.
constexpr std::size_t kMinRegisteredBytes = 65'536;

ncclDataType_t type_of(Dtype dtype) {
  constexpr ncclDataType_t kTypes[] = {ncclFloat32, ncclBfloat16, ncclFloat16,
                                       ncclInt8,    ncclInt32,    ncclUint32};
  return kTypes[static_cast<std::size_t>(dtype)];
}

/// Queues the messages of an exchange as a group, without the empty messages. Received bytes are
/// stored at `into`.
ncclResult_t queue_messages(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
                            std::byte* into, ncclComm_t handle, cudaStream_t stream) {
  return grouped([&] {
    ncclResult_t result = ncclSuccess;
    for (const auto& [peer, bytes] : sends)
      if (!bytes.empty())
        result = first_error(
            result, api().send(bytes.data(), bytes.size(), ncclUint8, peer, handle, stream));
    for (const auto& [peer, bytes] : receives) {
      if (bytes != 0)
        result = first_error(result, api().receive(into, bytes, ncclUint8, peer, handle, stream));
      into += align_up(bytes, kAlignment);
    }
    return result;
  });
}

}  // namespace

/// A bracket around an operation outside of any bracket.
class ImplicitBracket {
 public:
  ImplicitBracket(DeviceTransport& transport, const Operation& operation)
      : transport_(transport), operation_(operation), open_(!transport.queue_->in_bracket()) {
    transport.watcher_->check(operation.name);
    if (open_) transport.open(operation);
  }
  /// Also ends the bracket during unwinding. Otherwise, the bracket's deadline would expire.
  ~ImplicitBracket() {
    try {
      if (open_) transport_.end(operation_);
    } catch (const std::exception&) {
      // the unwinding error describes the device failure
    }
  }
  ImplicitBracket(const ImplicitBracket&) = delete;
  ImplicitBracket& operator=(const ImplicitBracket&) = delete;

  Handle close(Handle handle) {
    if (!open_) return handle;
    handle.test();
    open_ = false;
    transport_.end(operation_);
    return handle;
  }

 private:
  DeviceTransport& transport_;
  const Operation& operation_;
  bool open_;
};

void DeviceTransport::check_device(const Operation& operation, ConstByteSpan bytes) const {
  if (operation.memory == Memory::kHost)
    refuse(operation,
           "NCCL sends device memory (host memory only in all_gather and barrier): "
           "pass device spans, or pass host spans to another transport");
  if (!bytes.empty()) kernels::check_device_pointer(bytes.data());
}

void DeviceTransport::count_sent(std::uint64_t bytes, std::uint64_t messages) {
  sent_bytes_ += bytes;
  sent_messages_ += messages;
}

std::byte* DeviceTransport::receive_memory(QueuedTransfer& transfer,
                                           std::span<const ReceiveFrom> receives) {
  std::size_t bytes = 0;
  for (const ReceiveFrom& message : receives) bytes += align_up(message.capacity, kAlignment);
  if (bytes == 0) return nullptr;
  const DeviceBlock& block = transfer.receive_into(bytes);
  if (bytes >= kMinRegisteredBytes && block.capture == 0)
    communicator_->register_buffer(block.memory.span());
  std::byte* into = block.memory.pointer();
  for (const auto& [peer, capacity] : receives) {
    if (peer != rank()) transfer.set_received(peer, {into, capacity});
    if (peer != rank()) received_bytes_ += capacity;
    into += align_up(capacity, kAlignment);
  }
  return block.memory.pointer();
}

template <typename Queueing>
Handle DeviceTransport::launch(const Operation& operation, std::span<const ReceiveFrom> receives,
                               const Queueing& queueing) {
  ImplicitBracket bracket(*this, operation);
  auto transfer = std::make_unique<QueuedTransfer>(watcher_, queue_, operation, ranks());
  std::byte* const into = receive_memory(*transfer, receives);
  const StreamView stream = transfer->begin_queueing();
  call_nccl(operation,
            [&](ncclComm_t handle) { return queueing(handle, stream_of(stream), into); });
  transfer->end_queueing();
  return bracket.close(Handle(std::move(transfer)));
}

Handle DeviceTransport::exchange(const Operation& operation, std::span<const SendTo> sends,
                                 std::span<const ReceiveFrom> receives) {
  if (!receives.empty() && receives.front().peer == kAnyRank)
    refuse(operation, "NCCL has no receive_any");
  check_messages(operation, *this, sends, receives);
  check_device(operation, {});
  for (const SendTo& message : sends) check_device(operation, message.bytes);
  return launch(operation, receives, [&](ncclComm_t handle, cudaStream_t stream, std::byte* into) {
    for (const SendTo& message : sends) count_sent(message.bytes.size(), 1);
    return queue_messages(sends, receives, into, handle, stream);
  });
}

// The barrier is an all-reduce of a single byte.
Handle DeviceTransport::queue_barrier(const Operation& operation) {
  const ReceiveFrom word{rank(), 1};
  return launch(operation, {&word, 1}, [](ncclComm_t handle, cudaStream_t stream, std::byte* into) {
    kernels::zero_bytes(into, 1, {stream});
    return api().all_reduce(into, into, 1, ncclUint8, ncclSum, handle, stream);
  });
}

// Two ranks use send and receive, to avoid a copy of the own bytes. More ranks use NCCL's
// all-gather, including the copy.
Handle DeviceTransport::all_gather(const Operation& operation, ConstByteSpan send,
                                   std::size_t capacity) {
  if (operation.memory == Memory::kHost) return gather_staged(operation, send, capacity);
  check_device(operation, send);
  if (send.size() != capacity)
    refuse(operation, "a message on devices needs the full capacity of " +
                          std::to_string(capacity) + " bytes, but has " +
                          std::to_string(send.size()));
  if (capacity == 0) return queue_barrier(operation);
  if (ranks() == 2 || capacity % kAlignment != 0) {
    const std::vector<ConstByteSpan> sends(static_cast<std::size_t>(ranks()), send);
    const std::vector<std::size_t> capacities(sends.size(), capacity);
    return all_to_all(operation, sends, capacities);
  }
  std::vector<ReceiveFrom> receives;
  for (int peer = 0; peer < ranks(); ++peer) receives.push_back({peer, capacity});
  return launch(operation, receives, [&](ncclComm_t handle, cudaStream_t stream, std::byte* into) {
    count_sent((receives.size() - 1) * capacity, receives.size() - 1);
    return api().all_gather(send.data(), into, capacity, ncclUint8, handle, stream);
  });
}

// Parts are not joined here, because addresses differ between ranks.
Handle DeviceTransport::reduce(const Operation& operation, std::span<const ValueSpan> parts,
                               ncclRedOp_t op) {
  check_entries(operation, parts.size(), ranks());
  std::vector<ValueSpan> sums(parts.begin(), parts.end());
  std::erase_if(sums, [](const ValueSpan& part) { return part.empty(); });
  std::uint64_t bytes = 0;
  for (const ValueSpan& part : sums) {
    if (part.memory() == Memory::kHost || part.dtype() != sums.front().dtype())
      refuse(operation, "give parts of one dtype, all in device memory");
    check_device(operation, {part.pointer(), part.bytes()});
    bytes += part.bytes();
  }
  const auto all = static_cast<std::uint64_t>(ranks());
  return launch(operation, {}, [&](ncclComm_t handle, cudaStream_t stream, std::byte*) {
    count_sent(2 * (all - 1) * bytes / all, 2 * (all - 1) * sums.size());
    received_bytes_ += 2 * (all - 1) * bytes / all;
    return grouped([&] {
      ncclResult_t result = ncclSuccess;
      for (const ValueSpan& part : sums)
        result = first_error(result, api().all_reduce(part.pointer(), part.pointer(), part.count(),
                                                      type_of(part.dtype()), op, handle, stream));
      return result;
    });
  });
}

}  // namespace tersor::nccl
