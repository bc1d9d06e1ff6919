
// `tersor-bench allreduce --transport nccl`.

#include <fmt/format.h>
#include <tersor/error.h>
#include <tersor/nccl.h>

#include <algorithm>
#include <map>

#include "bench/allreduce/allreduce.h"
#include "bench/common/gpu/gpu.h"
#include "bench/processes/rank_processes.h"
#include "bench/ranks/nccl/gpu_fleet.h"
#include "kernels/device/device.h"

namespace tersor::bench {
namespace {

constexpr int kMinRanks = 2;

/// The measured cases: NCCL's sum by type, and codecs with the gradient's type and their
/// algorithms.
std::vector<SweepRow> rows_of(const AllreduceOptions& options) {
  std::vector<SweepRow> rows;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16})
    rows.push_back(
        {{.codec = std::string(kNcclSum), .iterations = options.iterations, .by_library = true},
         dtype});
  for (const CollectiveCase& choice : with_f32_sums(choices_of(options)))
    rows.push_back({choice, parse_gradient_dtype(options.dtype)});
  return rows;
}

/// The gradients of a count, in each type of the rows. Rank 0 has the gradients of all ranks.
std::map<Dtype, RankGradients> gradients_of(std::size_t count, const std::vector<SweepRow>& rows,
                                            const Fleet& fleet) {
  const auto here = fleet.has_rank0() ? std::nullopt : fleet.only_rank();
  std::map<Dtype, RankGradients> by_dtype;
  for (const SweepRow& row : rows)
    by_dtype.try_emplace(row.dtype, count, row.dtype, fleet.ranks(), here);
  return by_dtype;
}

Table<SweepRow> print_head(const std::vector<SweepRow>& rows) {
  const auto codec = [](auto& row) { return row.config.codec; };
  const auto algorithm = [](auto& row) { return std::string(row.algorithm()); };
  const auto wrong = [](const SweepRow& row) {
    return row.result.wrong ? std::to_string(*row.result.wrong) : "N/A";
  };
  const auto wire = [](const SweepRow& row) {
    return row.config.by_library ? "" : std::to_string(row.result.sent_bytes);
  };
  return Table<SweepRow>(
      {kSizeField,
       kCountField,
       kTypeField,
       {{"redop"}, [](auto&) { return "sum"; }},
       {{"codec", "", longest(rows, codec), Align::kLeft}, codec},
       {{"algorithm", "", 12, Align::kLeft}, algorithm},
       kTimeField,
       kAlgbwField,
       kBusbwField,
       {{"#wrong", "", 6}, wrong},
       {{"host", "us", 8}, [](auto& row) { return format_microseconds(row.result.part_seconds); }},
       {{"wire", "B", 10}, wire},
       kErrorField,
       {{"speed", "of f32's", 8}, [](auto& row) { return fmt::format("{:.2f}", row.speed()); }}});
}

Record record_over_nccl(const AllreduceOptions& options, const SweepRow& row) {
  const std::string note = sharing_note(row.ranks, device_count(), sharing_of_device());
  Record record = record_of(row, kNcclTransport, note.empty() ? options.fleet.link : "loopback");
  for (const char* field : {"collective", "dims"}) record.erase(field);
  record["chunk_count"] = options.chunk_count == 0 ? kNcclChunkCount : options.chunk_count;
  record["host_seconds"] = row.result.part_seconds;
  record["speed_of_f32"] = row.speed();
  record["graph"] = options.graph;
  record["device"] = kernels::device_name();
  record["devices"] = device_count();
  record["nccl"] = nccl_library();
  if (row.result.wrong) record["wrong"] = *row.result.wrong;
  if (!note.empty()) record["note"] = note;
  return record;
}

/// Measures the rows of a count.
std::vector<SweepRow> measure(const AllreduceOptions& options, Fleet& fleet,
                              std::vector<SweepRow> rows, std::size_t count) {
  const auto gradients = gradients_of(count, rows, fleet);
  std::vector<MeasuredCase> cases;
  for (const SweepRow& row : rows) cases.push_back({row.config, &gradients.at(row.dtype)});
  const auto results = measure_on_device(fleet, cases, options.graph);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].count = count;
    rows[i].ranks = fleet.ranks();
    rows[i].result = results[i];
    rows[i].library_seconds = results.front().seconds;
  }
  return rows;
}

void reject(bool given, const char* what) {
  if (given) throw InvalidArgumentError(fmt::format("--transport nccl does not go with {}", what));
}

void check(const AllreduceOptions& options) {
  reject(options.through_reducer(), "--parameters: the trainer on CUDA shows the reducer");
  reject(options.explain, "--explain");
  reject(options.fleet.link != "none", "--link: nothing is emulated");
  reject(std::ranges::find(options.codecs, kAutoCodec) != options.codecs.end(), "codec auto");
}

void run_as_rank(const AllreduceOptions& options, const RankIdentity& identity) {
  const auto fleet = make_gpu_fleet(options.fleet, identity);
  const std::vector<SweepRow> rows = rows_of(options);
  RecordFile records(fleet->has_rank0() ? options.json : "");
  fmt::print("{}; {}; {}time = median of the slowest rank\n\n", machine_name(), fleet->text(),
             options.graph ? "replays of a graph; " : "");
  const Table table = print_head(rows);
  const std::size_t value_bytes = dtype_bytes(parse_gradient_dtype(options.dtype));
  for (const std::size_t bytes : byte_counts(options)) {
    const std::size_t count = std::max<std::size_t>(bytes / value_bytes, 1);
    for (const SweepRow& row : measure(options, *fleet, rows, count)) {
      table.print(row);
      records.add(record_over_nccl(options, row));
    }
  }
}

}  // namespace

void run_nccl_allreduce(const AllreduceOptions& options) {
  check(options);
  if (const auto identity = identity_of_process()) return run_as_rank(options, *identity);
  const int devices = device_count();
  byte_counts(options);  // reports invalid arguments once instead of on each rank
  if (!options.json.empty()) RecordFile(options.json);
  run_rank_processes(options.fleet.ranks.value_or(std::max(devices, kMinRanks)), devices);
}

}  // namespace tersor::bench
