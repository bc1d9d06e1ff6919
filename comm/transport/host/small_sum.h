// Sums and maxima of little, step by step: the same bits whichever way and on all ranks (steps.h
// says in which order values are combined).
#pragma once

#include <memory>

#include "comm/transport/host/ring.h"
#include "comm/transport/host/steps.h"

namespace tersor::host {

/// By the steps of this rank.
std::unique_ptr<HostTransfer> make_small_sum(std::shared_ptr<Channel> channel,
                                             const Operation& operation, const RingWork& work,
                                             HostSteps steps);

}  // namespace tersor::host
