// What the command line of `tersor-bench allreduce` asks for.
#pragma once

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/fleet.h"

namespace tersor::bench {

struct AllreduceOptions {
  std::vector<std::string> codecs = {"int8", "int4", "topk:density=0.01"};
  std::string algorithm = "auto";
  std::string collective = "allreduce";
  std::vector<std::vector<int>> dims = {{}};  // of two-shot; {}: as the library chooses
  std::size_t min_bytes = 4 << 10;
  std::size_t max_bytes = 64 << 20;
  std::size_t factor = 4;
  FleetOptions fleet;
  std::size_t chunk_count = kDefaultChunkCount;
  std::size_t iterations = 0;
  std::string dtype = "f32";
  unsigned threads = 1;
  std::size_t parameters = 0;  // 0: no reducer
  std::string backward = "wire";
  std::vector<std::string> allowed = AutoOptions{}.codecs;
  bool explain = false;
  bool graph = false;  // NCCL only: replays of a captured call
  std::filesystem::path json;

  bool through_reducer() const { return parameters != 0; }
  bool scatters() const { return collective == "reduce_scatter"; }
};

/// The codecs asked for, behind those that have to be beside every codec.
std::vector<std::string> codecs_with_references(const AllreduceOptions& options);

/// The algorithm asked for, but for the references, which take their own where it does not fit.
Algorithm algorithm_for(const AllreduceOptions& options, const std::string& codec);

/// The grids on which a codec is measured: the references on none.
std::vector<std::vector<int>> grids_for(const AllreduceOptions& options, const std::string& codec);

/// "16,16" as numbers. Throws InvalidArgument where it is none.
std::vector<int> parse_dims(std::string_view text);

/// The sizes of the gradient, in bytes. Throws InvalidArgument where there are none.
std::vector<std::size_t> byte_counts(const AllreduceOptions& options);

}  // namespace tersor::bench
