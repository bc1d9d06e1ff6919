// What the command line of `tersor-bench allreduce` asks for.
#pragma once

#include <tersor/auto.h>

#include <cstddef>
#include <string>
#include <vector>

#include "bench/sweep.h"

namespace tersor::bench {

struct AllreduceOptions : SweepOptions {
  std::string collective = "allreduce";
  std::vector<std::vector<int>> dims = {{}};  // of two-shot; {}: as the library chooses
  std::size_t parameters = 0;                 // 0: no reducer
  std::string backward = "wire";
  std::vector<std::string> allowed = AutoOptions{}.codecs;
  bool explain = false;
  std::string kill = {};  // RANK@STEP; empty: nobody
  bool graph = false;  // NCCL only: replays of a captured call

  bool through_reducer() const { return parameters != 0; }
  bool scatters() const { return collective == "reduce_scatter"; }
};

}  // namespace tersor::bench
