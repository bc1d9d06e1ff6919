
#include "bench/allreduce/allreduce.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>

namespace tersor::bench {
namespace {

void add_algorithm(CLI::App& command, std::string& algorithm) {
  const auto known = [](const std::string& name) {
    return std::string(algorithm_name(parse_algorithm(name)));
  };
  add(command, "--algorithm", algorithm, "auto, native, two-shot, one-shot or hierarchical",
      "ALGORITHM", checked(known));
}

/// The reference codecs, followed by the requested codecs.
std::vector<std::string> codecs_with_references(const AllreduceOptions& options) {
  std::vector<std::string> codecs = {"none", "bf16"};
  codecs.insert(codecs.end(), options.codecs.begin(), options.codecs.end());
  return deduplicated(codecs);
}

}  // namespace

void add_sweep(CLI::App& command, AllreduceOptions& options,
               const std::vector<std::string>& transports) {
  add_algorithm(command, options.algorithm);
  add(command, "--min", options.min_bytes, "Smallest size; K, M and G are 1024s", "BYTES",
      size_suffix());
  add(command, "--max", options.max_bytes, "Largest size", "BYTES", size_suffix());
  add(command, "--factor", options.factor, "From one size to the next", "N", within(2, 1024));
  add_fleet(command, options.fleet, transports);
  command
      .add_option("--chunk", options.chunk_count,
                  "Values of a chunk; K, M and G are 1024s (1M; over NCCL 8M)")
      ->transform(size_suffix())
      ->type_name("N");
  add(command, "--iterations", options.iterations,
      "Timed calls; 0: as many as fill about a second, 5 to 200", "N");
  add_dtype(command, options.dtype);
  add(command, "--threads", options.threads, "Threads of each rank's codec", "N", within(1, 1024));
  add_json(command, options.json);
}

std::vector<CollectiveCase> choices_of(const AllreduceOptions& options) {
  std::vector<CollectiveCase> choices;
  for (const std::string& codec : codecs_with_references(options)) {
    const bool chosen = std::ranges::find(options.codecs, codec) != options.codecs.end();
    choices.push_back({.codec = codec,
                       .algorithm = chosen ? parse_algorithm(options.algorithm) : Algorithm::kAuto,
                       .chunk_count = options.chunk_count,
                       .threads = options.threads,
                       .iterations = options.iterations});
  }
  return choices;
}

std::vector<CollectiveCase> with_f32_sums(std::vector<CollectiveCase> choices) {
  const auto summed_in_f32 = [](const CollectiveCase& choice) {
    return choice.codec == "bf16" && choice.algorithm == Algorithm::kTwoShot;
  };
  if (std::ranges::any_of(choices, summed_in_f32)) return choices;
  const auto bf16 = std::ranges::find(choices, "bf16", &CollectiveCase::codec);
  CollectiveCase another = *bf16;
  another.algorithm = Algorithm::kTwoShot;
  choices.insert(bf16 + 1, another);
  return choices;
}

std::vector<std::size_t> byte_counts(const AllreduceOptions& options) {
  if (options.min_bytes > options.max_bytes)
    throw InvalidArgumentError(
        fmt::format("--min {} is above --max {}", options.min_bytes, options.max_bytes));
  std::vector<std::size_t> all;
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor)
    all.push_back(bytes);
  return all;
}

double SweepRow::hidden() const {
  const double wire = result.wire_seconds;
  return wire > 0 ? std::clamp(1 - result.part_seconds / wire, 0.0, 1.0) : 0.0;
}

const SweepField kSizeField{{"size", "B", 10},
                            [](auto& row) { return fmt::format("{:.0f}", row.bytes()); }};
const SweepField kCountField{{"count", "values", 10},
                             [](auto& row) { return std::to_string(row.count); }};
const SweepField kTypeField{{"type"}, [](auto& row) { return std::string(dtype_name(row.dtype)); }};
const SweepField kTimeField{{"time", "us", 10},
                            [](auto& row) { return format_microseconds(row.result.seconds); }};
const SweepField kAlgbwField{{"algbw", "GB/s", 8},
                             [](auto& row) { return fmt::format("{:.3f}", row.algbw()); }};
const SweepField kBusbwField{{"busbw", "GB/s", 8},
                             [](auto& row) { return fmt::format("{:.3f}", row.busbw()); }};
const SweepField kErrorField{{"error", "relative", 8},
                             [](auto& row) { return format_error(row.result.relative_error); }};

Record record_of(const SweepRow& row, std::string_view transport, std::string_view link) {
  Record record = {{"benchmark", "allreduce"},
                   {"collective", row.config.kind->name},
                   {"codec", row.config.codec},
                   {"algorithm", row.algorithm()},
                   {"dims", row.config.dims},
                   {"transport", transport},
                   {"link", link},
                   {"ranks", row.ranks},
                   {"dtype", dtype_name(row.dtype)},
                   {"count", row.count},
                   {"seconds", row.result.seconds},
                   {"algbw", row.algbw()},
                   {"busbw", row.busbw()},
                   {"wire_bytes", row.result.sent_bytes},
                   {"relative_error", row.result.relative_error},
                   {"identical", true}};
  return record;
}

void add_parts(Record& record, const CallResult& result, const AllreduceOptions& options) {
  record["encode_seconds"] = result.encode_seconds;
  record["wire_seconds"] = result.wire_seconds;
  record["decode_seconds"] = result.decode_seconds;
  record["chunk_count"] = options.chunk_count == 0 ? kDefaultChunkCount : options.chunk_count;
  record["threads"] = options.threads;
}

}  // namespace tersor::bench
