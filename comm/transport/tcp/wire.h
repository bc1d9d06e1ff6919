// Messages between processes over TCP connections. A connection is made on first use by a pair of
// ranks, on a dedicated thread. The callers of this wire move the messages without waiting: from
// the caller's memory into the system's, and on the receiver into a block. Receiving never depends
// on a posted receive, so sent messages always leave.
#pragma once

#include <tersor/network.h>

#include <memory>

#include "comm/transport/tcp/connection_manager.h"

namespace tersor::tcp {

std::unique_ptr<Wire> make_wire(RankAddress address);

}  // namespace tersor::tcp
