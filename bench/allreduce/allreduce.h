// `tersor-bench allreduce`: its options, and measurements of a codec and a count, called directly
// or through the GradientReducer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/allreduce/rank.h"
#include "bench/ranks/sweep.h"

namespace tersor::bench {

struct AllreduceOptions : SweepOptions {
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

/// Times steps of a GradientReducer with `pass.parameters` equal parameters.
CallResult measure_reducer(Fleet& fleet, const CollectiveCase& wanted, const BackwardPass& pass,
                           const RankGradients& gradients);

/// Selects calls, or replays of a captured call.
enum class Replay : std::uint8_t { kNo, kYes };

/// Times allreduces of device memory after checking a first call of each case. Rank 0 has the
/// gradients of all ranks. Cases with equal counts alternate call by call, so changes on the
/// machine affect all cases. Throws Error for wrong values and for ranks with different bits, and
/// the collective's exceptions. Only in builds with CUDA.
std::vector<CallResult> measure_on_device(Fleet& fleet, std::span<const MeasuredCase> cases,
                                          Replay replay);

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
