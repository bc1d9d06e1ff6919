// See allreduce.h.

#include "bench/nccl/allreduce.h"

#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/nccl.h>

#include <algorithm>
#include <map>

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
struct Row {
  std::string codec;
  Dtype dtype = Dtype::kF32;
  bool by_library = false;
};

std::vector<Row> rows_of(const AllreduceOptions& options) {
  std::vector<Row> rows = {{std::string(kNcclSum), Dtype::kF32, true},
                           {std::string(kNcclSum), Dtype::kBf16, true}};
  for (const std::string& codec : codecs_with_references(options))
    rows.push_back({codec, parse_gradient_dtype(options.dtype)});
  return rows;
}

AllreduceCase case_of(const AllreduceOptions& options, const Row& row) {
  if (row.by_library) return {.codec = row.codec, .by_library = true};
  return {.codec = row.codec,
          .algorithm = algorithm_for(options, row.codec),
          .chunk_count = options.chunk_count};
}

/// The gradients of one count in each type that rows have. Rank 0 has those of all ranks.
class Gradients {
 public:
  Gradients(std::size_t count, const std::vector<Row>& rows, const Fleet& fleet) {
    const auto here = fleet.leads() ? std::nullopt : fleet.only_rank();
    for (const Row& row : rows)
      by_dtype_.try_emplace(row.dtype, count, row.dtype, fleet.ranks(), here);
  }
  const RankGradients& of(Dtype dtype) const { return by_dtype_.at(dtype); }

 private:
  std::map<Dtype, RankGradients> by_dtype_;
};

/// A row with its times.
struct Measured {
  Row row;
  std::size_t count = 0;
  int ranks = 1;
  DeviceAllreduceResult result;
  double library_seconds = 0;  ///< of NCCL's sum of as many f32 values

  std::string_view algorithm() const {
    return row.by_library ? "library" : algorithm_name(result.algorithm);
  }
  double bytes() const { return static_cast<double>(count * dtype_bytes(row.dtype)); }
  double algbw() const { return bytes() / result.seconds / 1e9; }
  double busbw() const { return algbw() * 2 * (ranks - 1) / ranks; }
};

Table table_for(const std::vector<Row>& rows) {
  std::vector<std::string> codecs;
  for (const Row& row : rows) codecs.push_back(row.codec);
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

std::vector<std::string> cells_of(const Measured& of) {
  const DeviceAllreduceResult& result = of.result;
  return {fmt::format("{:.0f}", of.bytes()),
          std::to_string(of.count),
          std::string(dtype_name(of.row.dtype)),
          "sum",
          of.row.codec,
          std::string(of.algorithm()),
          fmt::format("{:.1f}", result.seconds * 1e6),
          fmt::format("{:.3f}", of.algbw()),
          fmt::format("{:.3f}", of.busbw()),
          result.wrong ? std::to_string(*result.wrong) : "N/A",
          fmt::format("{:.1f}", result.host_seconds * 1e6),
          of.row.by_library ? "" : std::to_string(result.wire_bytes),
          format_error(result.relative_error),
          fmt::format("{:.2f}", of.library_seconds / result.seconds)};
}

Record record_of(const AllreduceOptions& options, const Measured& of) {
  const DeviceAllreduceResult& result = of.result;
  const std::string note = sharing_note(of.ranks, device_count(), sharing_of_device());
  Record record = {
      {"benchmark", "allreduce"},
      {"codec", of.row.codec},
      {"algorithm", of.algorithm()},
      {"transport", kNcclTransport},
      {"link", note.empty() ? options.fleet.link : "loopback"},
      {"ranks", of.ranks},
      {"dtype", dtype_name(of.row.dtype)},
      {"count", of.count},
      {"seconds", result.seconds},
      {"algbw", of.algbw()},
      {"busbw", of.busbw()},
      {"wire_bytes", result.wire_bytes},
      {"relative_error", result.relative_error},
      {"identical", true},
      {"chunk_count", options.chunk_count == 0 ? kNcclChunkCount : options.chunk_count},
      {"host_seconds", result.host_seconds},
      {"speed_of_f32", of.library_seconds / result.seconds},
      {"graph", options.graph},
      {"device", current_gpu().name},
      {"devices", device_count()},
      {"nccl", nccl_library()}};
  if (result.wrong) record["wrong"] = *result.wrong;
  if (!note.empty()) record["note"] = note;
  return record;
}

std::vector<Measured> measure(const AllreduceOptions& options, Fleet& fleet,
                              const std::vector<Row>& rows, std::size_t count) {
  const Gradients gradients(count, rows, fleet);
  std::vector<DeviceAllreduceCase> cases;
  for (const Row& row : rows) cases.push_back({case_of(options, row), &gradients.of(row.dtype)});
  const auto results =
      measure_on_device(fleet, cases, {.graph = options.graph, .iterations = options.iterations});
  std::vector<Measured> measured;
  for (std::size_t i = 0; i < rows.size(); ++i)
    measured.push_back({rows[i], count, fleet.ranks(), results[i], results.front().seconds});
  return measured;
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
  const std::vector<Row> rows = rows_of(options);
  RecordFile records(fleet->leads() ? options.json : "");
  fmt::print("{}; {}; {}time = median of the slowest rank\n\n", machine_name(), fleet->text(),
             options.graph ? "replays of a graph; " : "");
  const Table table = table_for(rows);
  table.print_head();
  const std::size_t value_bytes = dtype_bytes(parse_gradient_dtype(options.dtype));
  for (const std::size_t bytes : byte_counts(options)) {
    const std::size_t count = std::max<std::size_t>(bytes / value_bytes, 1);
    for (const Measured& measured : measure(options, *fleet, rows, count)) {
      table.print_row(cells_of(measured));
      records.add(record_of(options, measured));
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
