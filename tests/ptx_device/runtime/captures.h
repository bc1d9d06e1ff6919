// The captures under way, and what they became: graphs.
#pragma once

#include "tests/ptx_device/runtime/device.h"

#include <cstdint>
#include <memory>

namespace ptx {

/// What cudaGraph_t and cudaGraphExec_t point to.
struct Executable {
  explicit Executable(std::shared_ptr<Graph> what) : graph(std::move(what)) { ++live; }
  ~Executable() { --live; }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  const std::shared_ptr<Graph> graph;
  static inline std::atomic<std::size_t> live{0};
};

/// Whether a call that waits or allocates is forbidden just now, as a capture is under way: that
/// breaks the capture.
bool is_forbidden();
/// Under capture_mutex().
bool is_under_way(std::uint64_t capture);
/// Ends the capture of a stream; under capture_mutex().
void forget_capture(Stream& stream);
/// Breaks all that are under way; false: none was.
bool break_captures();

}  // namespace ptx
