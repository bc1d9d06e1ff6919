// Native sums and maxima of values on a device: copied down, combined by the hosts as in ring.h,
// and copied up again; staging.h says how.
#pragma once

#include <memory>

#include "comm/transport/host/ring.h"
#include "comm/transport/host/staging.h"

namespace tersor::host {

/// As make_reduction, of parts that lie on a device.
std::unique_ptr<HostTransfer> make_staged_reduction(Staging& staging,
                                                    std::shared_ptr<Channel> channel,
                                                    const Operation& operation,
                                                    const RingWork& work);

}  // namespace tersor::host
