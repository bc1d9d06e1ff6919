// The options of a collective call from Python.
#pragma once

#include "python_bindings/src/feedback_state.h"
#include "python_bindings/src/waiting.h"

#include <tersor/collectives.h>
#include <tersor/error.h>
#include <tersor/threads.h>

#include <memory>
#include <mutex>
#include <vector>

namespace tersor::python {

/// Plans, buffers and threads, reused by calls with equal arguments. Destroy the workspace before
/// its transports.
class Workspace {
 public:
  explicit Workspace(unsigned threads) : threads_(threads) {}

  /// Sets the workspace and threads of a call over `transport`, until the returned lock ends.
  /// Throws InvalidArgumentError during another call. Needs the GIL.
  std::unique_lock<std::mutex> bind(CollectiveOptions& options, nb::handle transport) {
    std::unique_lock lock(busy_, std::try_to_lock);
    if (!lock)
      throw InvalidArgumentError(
          "workspace: another call uses this workspace; give each thread a workspace of its own");
    transports_.add(transport);
    options.workspace = plans_.get();
    options.threads = &threads_;
    return lock;
  }
  unsigned threads() const { return threads_.count(); }

 private:
  std::mutex busy_;
  nb::set transports_;  // declared first, so destroyed last
  std::shared_ptr<CollectiveWorkspace> plans_ = make_without_gil<CollectiveWorkspace>();
  Threads threads_;
};

/// The options of a call.
struct CallOptions : CollectiveOptions {
  std::vector<int> host_of_rank, grid;
  FeedbackState* feedback = nullptr;
  Workspace* own_workspace = nullptr;

  /// Returns the library's options, valid as long as this object and `lock`. Needs the GIL.
  CollectiveOptions resolve(nb::handle transport, CollectiveStatistics& filled,
                            std::unique_lock<std::mutex>& lock) const {
    CollectiveOptions options = *this;
    options.hosts = host_of_rank;
    options.dims = grid;
    options.statistics = &filled;
    if (feedback != nullptr) options.state = &feedback->state();
    if (own_workspace != nullptr) lock = own_workspace->bind(options, transport);
    return options;
  }
};

}  // namespace tersor::python
