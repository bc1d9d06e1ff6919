// See allreduce_options.h.

#include "bench/allreduce_options.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <charconv>

namespace tersor::bench {
namespace {

bool is_asked_for(const AllreduceOptions& options, const std::string& codec) {
  return std::ranges::find(options.codecs, codec) != options.codecs.end();
}

}  // namespace

Algorithm algorithm_for(const AllreduceOptions& options, const std::string& codec) {
  return is_asked_for(options, codec) ? parse_algorithm(options.algorithm) : Algorithm::kAuto;
}

std::vector<std::vector<int>> grids_for(const AllreduceOptions& options, const std::string& codec) {
  if (is_asked_for(options, codec)) return options.dims;
  return {{}};
}

std::vector<int> parse_dims(std::string_view text) {
  std::vector<int> dims;
  const char* next = text.data();
  const char* const end = next + text.size();
  for (bool more = true; more; ++next) {
    const auto [behind, error] = std::from_chars(next, end, dims.emplace_back());
    more = behind != end;
    if (error != std::errc() || (more && *behind != ','))
      throw InvalidArgument(fmt::format("\"{}\" is no grid: write e.g. 16,16", text));
    next = behind;
  }
  return dims;
}

}  // namespace tersor::bench
