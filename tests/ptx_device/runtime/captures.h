// Active captures and the resulting graphs.
#pragma once

#include "tests/ptx_device/runtime/device.h"

#include <cstdint>
#include <memory>

namespace ptx {

/// The object behind cudaGraph_t and cudaGraphExec_t.
struct Executable {
  explicit Executable(std::shared_ptr<Graph> what) : graph(std::move(what)) { ++live; }
  ~Executable() { --live; }
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  const std::shared_ptr<Graph> graph;
  static inline std::atomic<std::size_t> live{0};
};

/// True if an active capture forbids waits and allocations. The call then breaks the capture.
bool is_forbidden();
/// Requires capture_mutex().
bool is_under_way(std::uint64_t capture);
/// Ends the capture of a stream. Requires capture_mutex().
void forget_capture(Stream& stream);
/// Breaks all active captures. Returns false if no capture was active.
bool break_captures();

}  // namespace ptx
