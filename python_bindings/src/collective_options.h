// CollectiveOptions as Python sets them: what the library only points to is owned or kept here.
#pragma once

#include "python_bindings/src/feedback_state.h"
#include "python_bindings/src/waiting.h"

#include <nanobind/nanobind.h>
#include <tersor/auto.h>
#include <tersor/collectives.h>
#include <tersor/threads.h>

#include <vector>

namespace tersor::python {

/// Plans, buffers and threads that calls with equal arguments use again. Goes before the transports
/// that it was used with.
class Workspace {
 public:
  explicit Workspace(unsigned threads) : threads_(threads) {}

  /// Lends itself to a call over `transport`. Needs the GIL.
  void lend(CollectiveOptions& options, nb::handle transport);
  unsigned threads() const { return threads_.count(); }

 private:
  nb::set transports_;  // declared before, so they go after
  Patient<CollectiveWorkspace> plans_;
  Threads threads_;
};

/// The options of one call.
struct CallOptions : CollectiveOptions {
  std::vector<int> host_of_rank, grid;
  FeedbackState* feedback = nullptr;
  Workspace* lent = nullptr;

  /// The library's options, good as long as this one. Needs the GIL.
  CollectiveOptions resolve(nb::handle transport, CollectiveStatistics& filled) const;
};

}  // namespace tersor::python
