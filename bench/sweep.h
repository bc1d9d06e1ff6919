// What `tersor-bench allreduce` and `tersor-bench collectives` have in common: codecs by sizes on a
// fleet, and a row and a record of each measurement.
#pragma once

#include <tersor/collectives.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allreduce_case.h"
#include "bench/arguments.h"
#include "bench/fleet.h"
#include "bench/records.h"
#include "bench/table.h"

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

/// A codec, and the algorithm that its sums go by.
struct CodecWay {
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;

  bool operator==(const CodecWay&) const = default;
};

/// The codecs asked for as the algorithm asked for, behind those that have to be beside every
/// codec, as they choose.
std::vector<CodecWay> ways_of(const SweepOptions& options);

/// Of allreduces beside them: bf16 with sums in f32 (two-shot), which is what Megatron-Core sends
/// (reduce_scatter_with_fp32_accumulation). A reduce-scatter of bf16 adds so by itself.
std::vector<CodecWay> with_f32_sums(std::vector<CodecWay> ways);

/// The sizes, in bytes. Throws InvalidArgument where there are none.
std::vector<std::size_t> byte_counts(const SweepOptions& options);

/// What was measured, and through what.
struct SweepRow {
  std::string codec;
  bool by_library = false;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  int ranks = 1;
  std::string collective = {};  ///< empty where a transport knows but one
  std::vector<int> dims = {};
  BackwardPass pass = {};
  AllreduceResult result = {};
  double library_seconds = 0;  ///< of NCCL's sum of as many f32 values

  double bytes() const { return static_cast<double>(count * dtype_bytes(dtype)); }
  double algbw() const { return bytes() / result.seconds / 1e9; }
  double busbw() const {
    return algbw() * (collective == "reduce_scatter" ? 1 : 2) * (ranks - 1) / ranks;
  }
  /// The share of the wire's time in which nobody waited.
  double hidden() const;
  double speed() const { return library_seconds / result.seconds; }
  /// "library": nobody says which way it went.
  std::string_view algorithm() const {
    return by_library ? "library" : algorithm_name(result.algorithm);
  }
};

using SweepField = Field<SweepRow>;

/// Fields that several tables have.
extern const SweepField kSizeField, kCountField, kTypeField, kTimeField, kAlgbwField, kBusbwField,
    kErrorField;

/// Of an allreduce, the fields of all transports.
Record record_of(const SweepRow& row, std::string_view transport, std::string_view link);

/// Adds where the time of a call on hosts went, and what it had.
void add_parts(Record& record, const AllreduceResult& result, const SweepOptions& options);

}  // namespace tersor::bench
