// Implements <tersor/nccl.h>.
#include <tersor/nccl.h>

#include "comm/transport/nccl/device_transport.h"

namespace tersor {

std::string nccl_library() {
  const nccl::Api& api = nccl::api();
  return "NCCL " + nccl::version_name(api.version) + " (" + api.path + ")";
}

std::unique_ptr<Transport> make_nccl_transport(ncclComm_t communicator,
                                               std::chrono::milliseconds timeout) {
  auto fabric = std::make_shared<nccl::Fabric>();
  auto callers =
      std::make_unique<nccl::Communicator>(communicator, nccl::Owner::kCaller, fabric->fault());
  return std::make_unique<nccl::DeviceTransport>(std::move(fabric), std::move(callers), timeout);
}

std::unique_ptr<Transport> make_nccl_transport(NcclCommunicator communicator,
                                               std::chrono::milliseconds timeout) {
  auto fabric = std::make_shared<nccl::Fabric>();
  auto own = std::make_unique<nccl::Communicator>(communicator.handle(), nccl::Owner::kTransport,
                                                  fabric->fault());
  communicator.release();
  return std::make_unique<nccl::DeviceTransport>(std::move(fabric), std::move(own), timeout);
}

}  // namespace tersor
