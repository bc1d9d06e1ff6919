// The command-line options of `tersor-bench allreduce`.
#pragma once

#include <tersor/auto.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bench/sweep.h"

namespace tersor::bench {

struct AllreduceOptions : SweepOptions {
  std::string collective = "allreduce";
  std::vector<std::vector<int>> dims = {{}};  // grids of two-shot; {}: the library's choice
  std::size_t parameters = 0;                 // 0: without a reducer
  std::string backward = "wire";
  std::vector<std::string> allowed = AutoOptions{}.codecs;
  bool explain = false;
  std::string kill = {};  // RANK@STEP; empty: no rank
  bool graph = false;     // True to time replays of a captured call (NCCL only)

  bool through_reducer() const { return parameters != 0; }
  bool scatters() const { return collective == "reduce_scatter"; }
};

}  // namespace tersor::bench
