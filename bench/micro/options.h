// The options of tersor-microbench beside those of Google Benchmark.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "bench/common/command_line.h"

namespace tersor::bench {

struct MicroOptions {
  std::vector<std::string> codecs;  ///< empty: all codecs of the registry
  std::vector<std::size_t> counts;  ///< empty: kDefaultCount, or all values of a file
  std::size_t tensor_count = std::size_t{1} << 16;  ///< values per tensor of multi_tensor
  std::string dtype = "f32";
  std::string isa;
  std::string source = "normal";
  std::vector<unsigned> threads;  ///< empty: 1 and all cores
};

void add_micro_options(Command& command, MicroOptions& options);

}  // namespace tersor::bench
