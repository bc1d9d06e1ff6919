// See allreduce_options.h.

#include "bench/allreduce_options.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>

#include "bench/arguments.h"

namespace tersor::bench {

std::vector<std::string> codecs_with_references(const AllreduceOptions& options) {
  std::vector<std::string> codecs = {"none", "bf16"};
  codecs.insert(codecs.end(), options.codecs.begin(), options.codecs.end());
  return without_repeats(codecs);
}

Algorithm algorithm_for(const AllreduceOptions& options, const std::string& codec) {
  const bool asked = std::ranges::find(options.codecs, codec) != options.codecs.end();
  return asked ? parse_algorithm(options.algorithm) : Algorithm::kAuto;
}

std::vector<std::size_t> byte_counts(const AllreduceOptions& options) {
  if (options.min_bytes > options.max_bytes)
    throw InvalidArgument(
        fmt::format("--min {} is above --max {}", options.min_bytes, options.max_bytes));
  std::vector<std::size_t> all;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor)
    all.push_back(bytes);
  return all;
}

}  // namespace tersor::bench
