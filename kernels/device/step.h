// The step of a state whose words lie on a device.
#pragma once

#include <tersor/codec.h>
#include <tersor/stream.h>

namespace tersor::kernels {

/// Queues step + 1, once all calls of an exchange are queued that read the step.
void advance_step(StateWords* words, StreamView stream);

}  // namespace tersor::kernels
