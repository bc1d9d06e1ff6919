// What the command lines of `tersor-bench allreduce` and `tersor-bench collectives` have in common:
// codecs by sizes, on a fleet.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/fleet.h"

namespace tersor::bench {

struct SweepOptions {
  std::vector<std::string> codecs = {"int8", "int4", "topk:density=0.01"};
  std::string algorithm = "auto";
  std::size_t min_bytes = 4 << 10;
  std::size_t max_bytes = 64 << 20;
  std::size_t factor = 4;
  FleetOptions fleet;
  std::size_t chunk_count = 0;  ///< 0: as the transport has it
  std::size_t iterations = 0;
  std::string dtype = "f32";
  unsigned threads = 1;
  std::filesystem::path json;
};

/// All but --codec.
void add_sweep(Command& command, SweepOptions& options,
               const std::vector<std::string>& transports = transport_names());

/// The codecs asked for, behind those that have to be beside every codec.
std::vector<std::string> codecs_with_references(const SweepOptions& options);

/// The sizes, in bytes. Throws InvalidArgument where there are none.
std::vector<std::size_t> byte_counts(const SweepOptions& options);

}  // namespace tersor::bench
