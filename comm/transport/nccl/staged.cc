// Implements device_transport.h: host memory, by way of pinned memory and the device. For messages
// that control others, not for gradients.
#include <tersor/error.h>

#include <cstring>

#include "comm/transport/nccl/device_transport.h"
#include "kernels/common/device.h"

namespace tersor::nccl {
namespace {

cudaStream_t stream_of(StreamView stream) { return static_cast<cudaStream_t>(stream.handle); }

}  // namespace

// Slots of all ranks lie alike in pinned memory and on the device.
Handle DeviceTransport::gather_staged(const Operation& operation, ConstByteSpan send,
                                      std::size_t capacity) {
  check_host(operation);
  if (send.size() > capacity)
    throw InvalidArgument(std::string(operation.name) + ": " + std::to_string(send.size()) +
                          " bytes for a capacity of " + std::to_string(capacity));
  const std::size_t slot = Slot::bytes(capacity);
  const auto slots = static_cast<std::size_t>(ranks());
  auto transfer = std::make_unique<StagedTransfer>(fabric_, lane_, operation, slots * slot);
  Staging& staging = transfer->staging();
  const auto own = static_cast<std::size_t>(rank()) * slot;
  Slot::write(staging.host.span().subspan(own, slot), send);
  std::byte* device = staging.device.pointer();
  const StreamView wire = lane_->wire();
  kernels::copy_bytes(device + own, staging.host.pointer() + own, slot, wire);
  call_nccl(operation, [&](ncclComm_t handle) {
    return api().all_gather(device + own, device, slot, ncclUint8, handle, stream_of(wire));
  });
  kernels::copy_bytes(staging.host.pointer(), device, slots * slot, wire);
  lane_->signal(staging);
  std::vector<ConstByteSpan> received(slots);
  for (std::size_t peer = 0; peer < slots; ++peer)
    if (peer != static_cast<std::size_t>(rank()))
      received[peer] = staging.host.span().subspan(peer * slot, slot);
  transfer->set_received(std::move(received));
  count_sent((slots - 1) * slot, slots - 1);
  received_bytes_ += (slots - 1) * slot;
  return Handle(std::move(transfer));
}

void DeviceTransport::check_host(const Operation& operation) const {
  fabric_->check(operation.name);
  if (kernels::capture_of(lane_->wire()) != 0)
    throw InvalidArgument(std::string(operation.name) +
                          ": the host waits for it, so that it cannot be captured in a graph");
}

// From the first member to the others.
ncclUniqueId DeviceTransport::spread_id(std::span<const int> members, const Operation& operation) {
  ncclUniqueId id{};
  check_host(operation);
  StagedTransfer transfer(fabric_, lane_, operation, sizeof id);
  Staging& staging = transfer.staging();
  const bool first = members.front() == rank();
  const StreamView wire = lane_->wire();
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
        result = worse(result,
                       api().send(device, sizeof id, ncclUint8, member, handle, stream_of(wire)));
      return result;
    });
  });
  if (!first) kernels::copy_bytes(staging.host.pointer(), device, sizeof id, wire);
  lane_->signal(staging);
  transfer.wait_synchronize();
  std::memcpy(&id, staging.host.pointer(), sizeof id);
  return id;
}

}  // namespace tersor::nccl
