// `tersor-bench allreduce` and `tersor-bench collectives`: options, the rows of tables, records,
// and measurements that need more than a CollectiveRank.
#pragma once

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allreduce/rank.h"
#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/common/table.h"

namespace tersor::bench {

struct AllreduceOptions {
  std::vector<std::string> codecs = {"int8", "int4", "topk:density=0.01"};
  std::string algorithm = "auto";
  std::size_t min_bytes = 4 << 10;
  std::size_t max_bytes = 64 << 20;
  std::size_t factor = 4;
  FleetOptions fleet;
  std::size_t chunk_count = 0;  // 0: the transport's default
  std::size_t iterations = 0;
  std::string dtype = "f32";
  unsigned threads = 1;
  std::filesystem::path json;
  std::vector<std::string> collectives = {"allreduce"};
  std::size_t columns = 1024;                 // values per row of all_to_all
  std::vector<std::vector<int>> dims = {{}};  // grids of two-shot; {}: the library's choice
  std::size_t parameters = 0;                 // 0: without a reducer
  std::string backward = "wire";
  std::vector<std::string> allowed = AutoOptions{}.codecs;
  bool explain = false;
  std::string kill = {};  // RANK@STEP; empty: no rank
  bool graph = false;     // True to time replays of a captured call (NCCL only)

  bool through_reducer() const { return parameters != 0; }
};

/// Adds all options except --codec.
void add_sweep(CLI::App& command, AllreduceOptions& options,
               const std::vector<std::string>& transports = transport_names());

/// Cases of the reference codecs with their own choice of algorithm, followed by the requested
/// codecs with the requested algorithm.
std::vector<CollectiveCase> choices_of(const AllreduceOptions& options);

/// Adds another reference for allreduce: bf16 with sums in f32 (two-shot), like Megatron-Core's
/// reduce_scatter_with_fp32_accumulation. A reduce-scatter of bf16 always adds in f32.
std::vector<CollectiveCase> with_f32_sums(std::vector<CollectiveCase> choices);

/// The sizes in bytes. Throws InvalidArgumentError for an empty range.
std::vector<std::size_t> byte_counts(const AllreduceOptions& options);

/// A simulated backward pass: a sleep in which parameters become ready one after the other.
struct BackwardPass {
  std::size_t parameters = 1;
  double seconds = 0;
};

/// A measured case with its result.
struct SweepRow {
  CollectiveCase config;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  int ranks = 1;
  BackwardPass pass = {};
  CallResult result = {};
  double library_seconds = 0;  ///< NCCL's time for the sum of as many f32 values

  double bytes() const { return static_cast<double>(count * dtype_bytes(dtype)); }
  double algbw() const { return bytes() / result.seconds / 1e9; }
  double busbw() const {
    return algbw() * (config.kind->output == Amount::kShard ? 1 : 2) * (ranks - 1) / ranks;
  }
  /// The share of the wire time outside waiting.
  double hidden() const;
  double speed() const { return library_seconds / result.seconds; }
  /// "library" for the library's sum, whose algorithm is unknown.
  std::string_view algorithm() const {
    return config.by_library ? "library" : algorithm_name(result.algorithm);
  }
};

using SweepField = Field<SweepRow>;

/// Fields shared by several tables.
extern const SweepField kSizeField, kCountField, kTypeField, kTimeField, kAlgbwField, kBusbwField,
    kErrorField;

/// The fields of an allreduce record for all transports.
Record record_of(const SweepRow& row, std::string_view transport, std::string_view link);

/// Adds the parts of a call's time on hosts, and the call's options.
void add_parts(Record& record, const CallResult& result, const AllreduceOptions& options);

/// Times steps of a GradientReducer with `pass.parameters` equal parameters.
CallResult measure_reducer(Fleet& fleet, const CollectiveCase& config, const BackwardPass& pass,
                           const RankGradients& gradients);

/// Times allreduces of device memory after checking a first call of each case. Rank 0 has the
/// gradients of all ranks. Cases with equal counts alternate call by call, so changes on the
/// machine affect all cases. Throws Error for wrong values and for ranks with different bits, and
/// the collective's exceptions. `replays`: times replays of a captured call. Only in builds with
/// CUDA.
std::vector<CallResult> measure_on_device(Fleet& fleet, std::span<const MeasuredCase> cases,
                                          bool replays);

/// The killed rank, and the number of steps before the kill.
struct Kill {
  int rank = 1;
  std::size_t step = 20;
};

/// Parses "2@20". Throws InvalidArgumentError for other text.
Kill parse_kill(const std::string& text);

/// `--kill`: the cost of a killed rank for the other ranks, and the cost of an elastic reducer
/// without a loss. Measures, prints and records one loss, with the first size and the first codec.
/// Throws InvalidArgumentError unless ranks are processes over TCP. Also throws for an unknown rank
/// and for rank 0, because rank 0 prints.
void run_loss(const AllreduceOptions& options);

inline constexpr std::string_view kNcclTransport = "nccl";

/// `--transport nccl`: allreduce of device memory with the columns of nccl-tests, next to NCCL's
/// own sums of f32 and bf16. Measures if the environment contains this process's rank
/// (bench/processes/rank_processes.h). Otherwise starts a process per rank. Throws
/// InvalidArgumentError for options of other transports, and CudaError without a device. Only in
/// builds with NCCL.
void run_nccl_allreduce(const AllreduceOptions& options);

}  // namespace tersor::bench
