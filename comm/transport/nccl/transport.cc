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
  auto watcher = std::make_shared<nccl::Watcher>();
  auto callers =
      std::make_unique<nccl::Communicator>(communicator, nccl::Owner::kCaller, watcher->fault());
  return std::make_unique<nccl::DeviceTransport>(std::move(watcher), std::move(callers), timeout);
}

std::unique_ptr<Transport> make_nccl_transport(NcclCommunicator communicator,
                                               std::chrono::milliseconds timeout) {
  auto watcher = std::make_shared<nccl::Watcher>();
  auto own = std::make_unique<nccl::Communicator>(communicator.handle(), nccl::Owner::kTransport,
                                                  watcher->fault());
  communicator.release();
  return std::make_unique<nccl::DeviceTransport>(std::move(watcher), std::move(own), timeout);
}

}  // namespace tersor
