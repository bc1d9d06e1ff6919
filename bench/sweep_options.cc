// See sweep_options.h.

#include "bench/sweep_options.h"

#include <fmt/format.h>
#include <tersor/error.h>

namespace tersor::bench {
namespace {

void add_algorithm(Command& command, std::string& algorithm) {
  const auto known = [](const std::string& name) {
    return std::string(algorithm_name(parse_algorithm(name)));
  };
  command.add_option("--algorithm", algorithm, "auto, native, two-shot, one-shot or hierarchical")
      .transform(known)
      .type_name("ALGORITHM")
      .capture_default_str();
}

}  // namespace

void add_sweep(Command& command, SweepOptions& options,
               const std::vector<std::string>& transports) {
  add_algorithm(command, options.algorithm);
  add_size(command, "--min", options.min_bytes, "BYTES", "Smallest size; K, M and G are 1024s")
      .capture_default_str();
  add_size(command, "--max", options.max_bytes, "BYTES", "Largest size").capture_default_str();
  command.add_option("--factor", options.factor, "From one size to the next")
      .check(from_to(2, 1024))
      .type_name("N")
      .capture_default_str();
  add_fleet(command, options.fleet, transports);
  add_size(command, "--chunk", options.chunk_count, "N",
           "Values of a chunk; K, M and G are 1024s (1M; over NCCL 8M)");
  command
      .add_option("--iterations", options.iterations,
                  "Timed calls; 0: as many as fill about a second, 5 to 200")
      .type_name("N")
      .capture_default_str();
  add_dtype(command, options.dtype);
  command.add_option("--threads", options.threads, "Threads of each rank's codec")
      .check(from_to(1, 1024))
      .type_name("N")
      .capture_default_str();
  add_json(command, options.json);
}

std::vector<std::string> codecs_with_references(const SweepOptions& options) {
  std::vector<std::string> codecs = {"none", "bf16"};
  codecs.insert(codecs.end(), options.codecs.begin(), options.codecs.end());
  return without_repeats(codecs);
}

std::vector<std::size_t> byte_counts(const SweepOptions& options) {
  if (options.min_bytes > options.max_bytes)
    throw InvalidArgument(
        fmt::format("--min {} is above --max {}", options.min_bytes, options.max_bytes));
  std::vector<std::size_t> all;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor)
    all.push_back(bytes);
  return all;
}

}  // namespace tersor::bench
