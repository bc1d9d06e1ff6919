// The captures under way, and what they became: graphs.
#pragma once

#include "tests/ptx_device/runtime/device.h"

#include <cstdint>
#include <memory>

namespace ptx {

/// What cudaGraph_t and cudaGraphExec_t point to.
struct Executable {
  std::shared_ptr<Graph> graph;
};

/// Whether a call that waits or allocates is forbidden just now, as a capture is under way: that
/// breaks the capture.
bool is_forbidden();
/// Under capture_mutex().
bool is_under_way(std::uint64_t capture);
/// Breaks all that are under way; false: none was.
bool break_captures();

}  // namespace ptx
