// `tersor-bench allreduce --kill`: the cost of a killed rank for the other ranks, and the cost of
// an elastic reducer without a loss.
#pragma once

#include <cstddef>
#include <string>

#include "bench/allreduce_options.h"

namespace tersor::bench {

/// The killed rank, and the number of steps before the kill.
struct Kill {
  int rank = 1;
  std::size_t step = 20;
};

/// Parses "2@20". Throws InvalidArgumentError for other text.
Kill parse_kill(const std::string& text);

/// Measures, prints and records one loss, with the first size and the first codec. Throws
/// InvalidArgumentError unless ranks are processes over TCP. Also throws for an unknown rank and
/// for rank 0, because rank 0 prints.
void run_loss(const AllreduceOptions& options);

}  // namespace tersor::bench
