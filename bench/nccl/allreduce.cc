// See allreduce.h.

#include "bench/nccl/allreduce.h"

#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/nccl.h>

#include <algorithm>
#include <map>

#include "bench/allreduce_row.h"
#include "bench/arguments.h"
#include "bench/device/allreduce.h"
#include "bench/device/gpu.h"
#include "bench/nccl/gpu_fleet.h"
#include "bench/records.h"
#include "bench/table.h"

namespace tersor::bench {
namespace {

constexpr int kFewestRanks = 2;

/// What is measured: a codec on the gradient's type, or NCCL's sum of a type.
std::vector<AllreduceRow> rows_of(const AllreduceOptions& options) {
  std::vector<AllreduceRow> rows;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16})
    rows.push_back({.codec = std::string(kNcclSum), .by_library = true, .dtype = dtype});
  for (const std::string& codec : codecs_with_references(options))
    rows.push_back({.codec = codec, .dtype = parse_gradient_dtype(options.dtype)});
  return rows;
}

AllreduceCase case_of(const AllreduceOptions& options, const AllreduceRow& row) {
  if (row.by_library) return {.codec = row.codec, .by_library = true};
  return {.codec = row.codec,
          .algorithm = algorithm_for(options, row.codec),
          .chunk_count = options.chunk_count};
}

/// The gradients of one count in each type that rows have. Rank 0 has those of all ranks.
class Gradients {
 public:
  Gradients(std::size_t count, const std::vector<AllreduceRow>& rows, const Fleet& fleet) {
    const auto here = fleet.leads() ? std::nullopt : fleet.only_rank();
    for (const AllreduceRow& row : rows)
      by_dtype_.try_emplace(row.dtype, count, row.dtype, fleet.ranks(), here);
  }
  const RankGradients& of(Dtype dtype) const { return by_dtype_.at(dtype); }

 private:
  std::map<Dtype, RankGradients> by_dtype_;
};

Table table_for(const std::vector<AllreduceRow>& rows) {
  std::vector<std::string> codecs;
  for (const AllreduceRow& row : rows) codecs.push_back(row.codec);
  return Table({{"size", "B", 10},
                {"count", "values", 10},
                {"type", "", 4},
                {"redop"},
                {"codec", "", longest(codecs), Align::kLeft},
                {"algorithm", "", 12, Align::kLeft},
                {"time", "us", 10},
                {"algbw", "GB/s", 8},
                {"busbw", "GB/s", 8},
                {"#wrong", "", 6},
                {"host", "us", 8},
                {"wire", "B", 10},
                {"error", "relative", 8},
                {"speed", "of f32's", 8}});
}

/// NCCL's sum of as many f32 values took `library_seconds`.
std::vector<std::string> cells_of(const AllreduceRow& row, double library_seconds) {
  const AllreduceResult& result = row.result;
  return {fmt::format("{:.0f}", row.bytes()),
          std::to_string(row.count),
          std::string(dtype_name(row.dtype)),
          "sum",
          row.codec,
          std::string(row.algorithm()),
          fmt::format("{:.1f}", result.seconds * 1e6),
          fmt::format("{:.3f}", row.algbw()),
          fmt::format("{:.3f}", row.busbw()),
          result.wrong ? std::to_string(*result.wrong) : "N/A",
          fmt::format("{:.1f}", result.part_seconds * 1e6),
          row.by_library ? "" : std::to_string(result.wire_bytes),
          format_error(result.relative_error),
          fmt::format("{:.2f}", library_seconds / result.seconds)};
}

Record record_of(const AllreduceOptions& options, const AllreduceRow& row, double library_seconds) {
  const std::string note = sharing_note(row.ranks, device_count(), sharing_of_device());
  Record record = record_of(row, kNcclTransport, note.empty() ? options.fleet.link : "loopback");
  record["chunk_count"] = options.chunk_count == 0 ? kNcclChunkCount : options.chunk_count;
  record["host_seconds"] = row.result.part_seconds;
  record["speed_of_f32"] = library_seconds / row.result.seconds;
  record["graph"] = options.graph;
  record["device"] = current_gpu().name;
  record["devices"] = device_count();
  record["nccl"] = nccl_library();
  if (row.result.wrong) record["wrong"] = *row.result.wrong;
  if (!note.empty()) record["note"] = note;
  return record;
}

/// The rows of one count.
std::vector<AllreduceRow> measure(const AllreduceOptions& options, Fleet& fleet,
                                  std::vector<AllreduceRow> rows, std::size_t count) {
  const Gradients gradients(count, rows, fleet);
  std::vector<DeviceAllreduceCase> cases;
  for (const AllreduceRow& row : rows)
    cases.push_back({case_of(options, row), &gradients.of(row.dtype)});
  const auto results =
      measure_on_device(fleet, cases, {.graph = options.graph, .iterations = options.iterations});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].count = count;
    rows[i].ranks = fleet.ranks();
    rows[i].result = results[i];
  }
  return rows;
}

void refuse(bool asked, const char* what) {
  if (asked) throw InvalidArgument(fmt::format("--transport nccl does not go with {}", what));
}

void check(const AllreduceOptions& options) {
  refuse(options.through_reducer(), "--parameters: the trainer on CUDA shows the reducer");
  refuse(options.explain, "--explain");
  refuse(options.fleet.link != "none", "--link: nothing is emulated");
  refuse(std::ranges::find(options.codecs, kAutoCodec) != options.codecs.end(), "codec auto");
}

void run_as_rank(const AllreduceOptions& options, const RankPlace& place) {
  const auto fleet = make_gpu_fleet(options.fleet, place);
  const std::vector<AllreduceRow> rows = rows_of(options);
  RecordFile records(fleet->leads() ? options.json : "");
  fmt::print("{}; {}; {}time = median of the slowest rank\n\n", machine_name(), fleet->text(),
             options.graph ? "replays of a graph; " : "");
  const Table table = table_for(rows);
  table.print_head();
  const std::size_t value_bytes = dtype_bytes(parse_gradient_dtype(options.dtype));
  for (const std::size_t bytes : byte_counts(options)) {
    const std::size_t count = std::max<std::size_t>(bytes / value_bytes, 1);
    const std::vector<AllreduceRow> measured = measure(options, *fleet, rows, count);
    const double library_seconds = measured.front().result.seconds;
    for (const AllreduceRow& row : measured) {
      table.print_row(cells_of(row, library_seconds));
      records.add(record_of(options, row, library_seconds));
    }
  }
}

}  // namespace

void run_nccl_allreduce(const AllreduceOptions& options) {
  check(options);
  if (const auto place = place_of_process()) return run_as_rank(options, *place);
  const int devices = device_count();
  byte_counts(options);  // what is wrong is said once, not by each rank
  if (!options.json.empty()) RecordFile(options.json);
  run_rank_processes(options.fleet.ranks.value_or(std::max(devices, kFewestRanks)), devices);
}

}  // namespace tersor::bench
