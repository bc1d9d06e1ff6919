// Implements device_transport.h: host memory, sent through pinned memory and the device. Used for
// control messages, not for gradients.
#include <cstring>

#include "comm/transport/arguments.h"
#include "comm/transport/nccl/device_transport.h"
#include "kernels/device/device.h"

namespace tersor::nccl {

// The messages of all ranks have the same layout in pinned memory and on the device.
Handle DeviceTransport::gather_staged(const Operation& operation, ConstByteSpan send,
                                      std::size_t capacity) {
  check_host(operation);
  if (send.size() > capacity)
    refuse(operation, "the message has " + std::to_string(send.size()) +
                          " bytes: give at most the capacity, " + std::to_string(capacity));
  const std::size_t bytes = SizedMessage::bytes(capacity);
  const auto count = static_cast<std::size_t>(ranks());
  auto transfer =
      std::make_unique<StagedTransfer>(watcher_, queue_, operation, ranks(), count * bytes);
  StagingBuffers& staging = transfer->staging();
  const auto own = static_cast<std::size_t>(rank()) * bytes;
  SizedMessage::write(staging.host.span().subspan(own, bytes), send);
  std::byte* device = staging.device.pointer();
  const StreamView wire = queue_->wire();
  kernels::copy_bytes(device + own, staging.host.pointer() + own, bytes, wire);
  call_nccl(operation, [&](ncclComm_t handle) {
    return api().all_gather(device + own, device, bytes, ncclUint8, handle, stream_of(wire));
  });
  kernels::copy_bytes(staging.host.pointer(), device, count * bytes, wire);
  queue_->signal(staging);
  for (int peer = 0; peer < ranks(); ++peer)
    if (peer != rank())
      transfer->set_received(
          peer, staging.host.span().subspan(static_cast<std::size_t>(peer) * bytes, bytes));
  count_sent((count - 1) * bytes, count - 1);
  received_bytes_ += (count - 1) * bytes;
  return Handle(std::move(transfer));
}

void DeviceTransport::check_host(const Operation& operation) const {
  watcher_->check(operation.name);
  if (kernels::capture_of(queue_->wire()) != 0)
    refuse(operation, "the host waits for this call, which cannot be captured in a graph");
}

// Sends the id from the first member to the other members.
ncclUniqueId DeviceTransport::broadcast_id(std::span<const int> members,
                                           const Operation& operation) {
  ncclUniqueId id{};
  check_host(operation);
  StagedTransfer transfer(watcher_, queue_, operation, ranks(), sizeof id);
  StagingBuffers& staging = transfer.staging();
  const bool first = members.front() == rank();
  const StreamView wire = queue_->wire();
  std::byte* device = staging.device.pointer();
  if (first) {
    check(api().get_unique_id(&id), "ncclGetUniqueId", nullptr);
    std::memcpy(staging.host.pointer(), &id, sizeof id);
    kernels::copy_bytes(device, staging.host.pointer(), sizeof id, wire);
  }
  call_nccl(operation, [&](ncclComm_t handle) {
    return grouped([&] {
      ncclResult_t result = ncclSuccess;
      if (!first)
        return api().receive(device, sizeof id, ncclUint8, members.front(), handle,
                             stream_of(wire));
      for (const int member : members.subspan(1))
        result = first_error(
            result, api().send(device, sizeof id, ncclUint8, member, handle, stream_of(wire)));
      return result;
    });
  });
  if (!first) kernels::copy_bytes(staging.host.pointer(), device, sizeof id, wire);
  queue_->signal(staging);
  transfer.wait_synchronize();
  std::memcpy(&id, staging.host.pointer(), sizeof id);
  return id;
}

}  // namespace tersor::nccl
