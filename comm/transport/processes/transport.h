// The Transport of ranks that are processes, once their world is there.
#pragma once

#include <tersor/transport.h>

#include <memory>

#include "comm/transport/processes/world.h"

namespace tersor::processes {

std::unique_ptr<Transport> make_transport(std::shared_ptr<World> world);

}  // namespace tersor::processes
