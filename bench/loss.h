// `tersor-bench allreduce --kill`: what it costs the others when a rank is killed, and what it
// costs to be ready for that.
#pragma once

#include <cstddef>
#include <string>

#include "bench/allreduce_options.h"

namespace tersor::bench {

/// The rank that is killed at the beginning of a step, and how many steps there are before.
struct Kill {
  int rank = 1;
  std::size_t step = 20;
};

/// "2@20". Throws InvalidArgument where it is none.
Kill parse_kill(const std::string& text);

/// Prints and records one loss, of the first size and the first codec. Throws InvalidArgument where
/// ranks are no processes over TCP, and for a rank that is not there, or is rank 0, which prints.
void run_loss(const AllreduceOptions& options);

}  // namespace tersor::bench
