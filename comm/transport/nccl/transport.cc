// Implements <tersor/nccl.h>.
#include <tersor/nccl.h>

#include "comm/transport/nccl/device_transport.h"

namespace tersor {
namespace {

using nccl::Communicator;
using nccl::Owner;

std::unique_ptr<Transport> over_callers(ncclComm_t handle, std::chrono::milliseconds timeout) {
  auto fabric = std::make_shared<nccl::Fabric>();
  auto communicator = std::make_unique<Communicator>(handle, Owner::kCaller, fabric->fault());
  return std::make_unique<nccl::DeviceTransport>(std::move(fabric), std::move(communicator),
                                                 timeout);
}

std::unique_ptr<Transport> over_own(NcclCommunicator own, std::chrono::milliseconds timeout) {
  auto fabric = std::make_shared<nccl::Fabric>();
  auto communicator =
      std::make_unique<Communicator>(own.handle(), Owner::kTransport, fabric->fault());
  own.release();
  return std::make_unique<nccl::DeviceTransport>(std::move(fabric), std::move(communicator),
                                                 timeout);
}

}  // namespace

std::string nccl_library() {
  const nccl::Api& api = nccl::api();
  return "NCCL " + nccl::version_name(api.version) + " (" + api.path + ")";
}

NcclTransport::NcclTransport(ncclComm_t communicator, std::chrono::milliseconds timeout)
    : ForwardingTransport(over_callers(communicator, timeout)) {}

NcclTransport::NcclTransport(NcclCommunicator communicator, std::chrono::milliseconds timeout)
    : ForwardingTransport(over_own(std::move(communicator), timeout)) {}

NcclTransport::~NcclTransport() = default;

}  // namespace tersor
