// A GPU that operations are measured on.
#pragma once

#include <tersor/stream.h>

#include <memory>

#include "bench/machine.h"

namespace tersor::bench {

/// The current device, with calls on this stream. For builds with CUDA only.
std::unique_ptr<Machine> make_gpu_machine(StreamView stream);

}  // namespace tersor::bench
