// Common parts of `tersor-bench allreduce` and `tersor-bench collectives`: codecs by sizes on a
// fleet, with a table row and a record per measurement.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/common/table.h"
#include "bench/ranks/iterations.h"

namespace tersor::bench {

struct SweepOptions {
  std::vector<std::string> codecs = {"int8", "int4", "topk:density=0.01"};
  std::string algorithm = "auto";
  std::size_t min_bytes = 4 << 10;
  std::size_t max_bytes = 64 << 20;
  std::size_t factor = 4;
  FleetOptions fleet;
  std::size_t chunk_count = 0;  ///< 0: the transport's default
  std::size_t iterations = 0;
  std::string dtype = "f32";
  unsigned threads = 1;
  std::filesystem::path json;
};

/// Adds all options except --codec.
void add_sweep(CLI::App& command, SweepOptions& options,
               const std::vector<std::string>& transports = transport_names());

/// The reference codecs, followed by the requested codecs.
std::vector<std::string> codecs_with_references(const SweepOptions& options);

/// A codec and its algorithm.
struct CodecChoice {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;

  bool operator==(const CodecChoice&) const = default;
};

/// The reference codecs with their own choice of algorithm, followed by the requested codecs with
/// the requested algorithm.
std::vector<CodecChoice> choices_of(const SweepOptions& options);

/// Adds another reference for allreduce: bf16 with sums in f32 (two-shot), like Megatron-Core's
/// reduce_scatter_with_fp32_accumulation. A reduce-scatter of bf16 always adds in f32.
std::vector<CodecChoice> with_f32_sums(std::vector<CodecChoice> choices);

/// The sizes in bytes. Throws InvalidArgumentError for an empty range.
std::vector<std::size_t> byte_counts(const SweepOptions& options);

/// A simulated backward pass: a sleep in which parameters become ready one after the other.
struct BackwardPass {
  std::size_t parameters = 1;
  double seconds = 0;
};

/// A measured case with its result.
struct SweepRow {
  std::string codec;
  bool by_library = false;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  int ranks = 1;
  std::string collective = {};  ///< empty for transports with a single collective
  std::vector<int> dims = {};
  BackwardPass pass = {};
  CallResult result = {};
  double library_seconds = 0;  ///< NCCL's time for the sum of as many f32 values

  double bytes() const { return static_cast<double>(count * dtype_bytes(dtype)); }
  double algbw() const { return bytes() / result.seconds / 1e9; }
  double busbw() const {
    return algbw() * (collective == "reduce_scatter" ? 1 : 2) * (ranks - 1) / ranks;
  }
  /// The share of the wire time outside waiting.
  double hidden() const;
  double speed() const { return library_seconds / result.seconds; }
  /// "library" for the library's sum, whose algorithm is unknown.
  std::string_view algorithm() const {
    return by_library ? "library" : algorithm_name(result.algorithm);
  }
};

using SweepField = Field<SweepRow>;

/// Fields shared by several tables.
extern const SweepField kSizeField, kCountField, kTypeField, kTimeField, kAlgbwField, kBusbwField,
    kErrorField;

/// The fields of an allreduce record for all transports.
Record record_of(const SweepRow& row, std::string_view transport, std::string_view link);

/// Adds the parts of a call's time on hosts, and the call's options.
void add_parts(Record& record, const CallResult& result, const SweepOptions& options);

}  // namespace tersor::bench
