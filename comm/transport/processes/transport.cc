// Implements transport.h.
#include "comm/transport/processes/transport.h"

#include <utility>

#include "comm/transport/host/host_transport.h"
#include "comm/transport/processes/postman.h"

namespace tersor::processes {

std::unique_ptr<Transport> make_transport(std::shared_ptr<World> world) {
  const TransportTraits traits{.any_thread = world->traits().any_thread};
  Box& everybody = world->everybody();
  return std::make_unique<host::HostTransport>(
      std::make_shared<ProcessPostman>(std::move(world), everybody), traits);
}

}  // namespace tersor::processes
