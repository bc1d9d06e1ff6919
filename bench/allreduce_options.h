// What the command line of `tersor-bench allreduce` asks for.
#pragma once

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "bench/sweep_options.h"

namespace tersor::bench {

struct AllreduceOptions : SweepOptions {
  std::string collective = "allreduce";
  std::vector<std::vector<int>> dims = {{}};  // of two-shot; {}: as the library chooses
  std::size_t parameters = 0;                 // 0: no reducer
  std::string backward = "wire";
  std::vector<std::string> allowed = AutoOptions{}.codecs;
  bool explain = false;
  bool graph = false;  // NCCL only: replays of a captured call

  bool through_reducer() const { return parameters != 0; }
  bool scatters() const { return collective == "reduce_scatter"; }
};

/// The algorithm asked for, but for the references, which take their own where it does not fit.
Algorithm algorithm_for(const AllreduceOptions& options, const std::string& codec);

/// The grids on which a codec is measured: the references on none.
std::vector<std::vector<int>> grids_for(const AllreduceOptions& options, const std::string& codec);

/// "16,16" as numbers. Throws InvalidArgument where it is none.
std::vector<int> parse_dims(std::string_view text);

}  // namespace tersor::bench
