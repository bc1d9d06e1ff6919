// `tersor-bench collectives`: collectives without sums or with a root, on the ranks of
// `tersor-bench allreduce`. MPI's own collectives also run over MPI.

#include <fmt/format.h>
#include <tersor/codec.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "bench/collectives/collective_case.h"
#include "bench/commands.h"
#include "bench/ranks/sweep.h"

namespace tersor::bench {
namespace {

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const CollectiveKind& kind : collective_kinds()) names.emplace_back(kind.name);
  return names;
}

struct CollectivesOptions : SweepOptions {
  CollectivesOptions() { codecs = {"int8", "int4"}; }

  std::vector<std::string> names = kind_names();
  std::size_t columns = 1024;
};

/// The number of columns. A shard is whole rows; a shard smaller than a row is a single row.
std::size_t row_of(const CollectivesOptions& options, std::size_t shard) {
  return std::min(options.columns, shard);
}

/// The number of values per shard.
std::size_t shard_count(const CollectivesOptions& options, std::size_t bytes, int ranks) {
  const std::size_t values = bytes / dtype_bytes(parse_gradient_dtype(options.dtype));
  const std::size_t shard = std::max(values / static_cast<std::size_t>(ranks), std::size_t{1});
  return shard - shard % row_of(options, shard);
}

CollectiveCase case_of(const CollectivesOptions& options, const CollectiveKind& kind,
                       const std::string& codec) {
  return {.kind = &kind,
          .codec = codec,
          .algorithm = parse_algorithm(options.algorithm),
          .chunk_count = options.chunk_count,
          .threads = options.threads,
          .iterations = options.iterations,
          .by_library = codec == kind.library};
}

/// MPI's own collective, if available, followed by Tersor's collective with all codecs.
std::vector<CollectiveCase> cases_of(const CollectivesOptions& options, const Fleet& fleet) {
  std::vector<CollectiveCase> cases;
  for (const std::string& name : options.names) {
    const auto& kind = *std::ranges::find(collective_kinds(), name, &CollectiveKind::name);
    if (fleet.library() && fleet.library()->call && options.dtype == "f32")
      cases.push_back(case_of(options, kind, std::string(kind.library)));
    for (const std::string& codec : codecs_with_references(options))
      cases.push_back(case_of(options, kind, codec));
  }
  return cases;
}

Record record_of(const CollectivesOptions& options, const CollectiveCase& wanted,
                 const SweepRow& row) {
  Record record = record_of(row, options.fleet.transport, options.fleet.link);
  record["benchmark"] = "collectives";
  for (const char* of_sums : {"dims", "busbw", "identical"}) record.erase(of_sums);
  record["columns"] = wanted.columns;
  add_parts(record, row.result, options);
  return record;
}

Table<SweepRow> print_head(const std::vector<CollectiveCase>& cases) {
  return Table<SweepRow>(
      {kSizeField,
       {{"collective", "", longest(kind_names()), Align::kLeft}, &SweepRow::collective},
       {{"codec", "", longest(cases, &CollectiveCase::codec), Align::kLeft}, &SweepRow::codec},
       kTimeField,
       kAlgbwField,
       {{"wire", "B", 10}, [](auto& row) { return std::to_string(row.result.wire_bytes); }},
       kErrorField});
}

SweepRow measure(Fleet& fleet, const CollectiveCase& wanted, const RankGradients& gradients) {
  return {.codec = wanted.codec,
          .by_library = wanted.by_library,
          .count = gradients.count(),
          .dtype = gradients.dtype(),
          .ranks = gradients.ranks(),
          .collective = std::string(wanted.kind->name),
          .result = measure_collective(fleet, wanted, gradients)};
}

void run_collectives(const CollectivesOptions& options) {
  const std::vector<std::size_t> sizes = byte_counts(options);
  const auto fleet = make_fleet(options.fleet);
  const std::vector<CollectiveCase> cases = cases_of(options, *fleet);
  const Dtype dtype = parse_gradient_dtype(options.dtype);
  RecordFile records(fleet->leads() ? options.json : "");
  fmt::print("{}; {}; time = median of the slowest rank\n\n", machine_name(), fleet->text());
  const Table table = print_head(cases);
  for (const std::size_t bytes : sizes) {
    const std::size_t shard = shard_count(options, bytes, fleet->ranks());
    const std::size_t count = shard * static_cast<std::size_t>(fleet->ranks());
    const RankGradients gradients(count, dtype, fleet->ranks(), fleet->only_rank());
    for (CollectiveCase wanted : cases) {
      wanted.columns = row_of(options, shard);
      const SweepRow row = measure(*fleet, wanted, gradients);
      table.print(row);
      records.add(record_of(options, wanted, row));
    }
  }
}

}  // namespace

void add_collectives_command(Command& program) {
  const auto options = std::make_shared<CollectivesOptions>();
  Command command = program.add_subcommand(
      "collectives",
      "Times broadcast, reduce, gather, scatter, all_to_all and send_receive, beside MPI's over "
      "MPI");
  command.add_option("--collective", options->names, "Which of them")
      .takes("NAME", one_of(kind_names()));
  add_codecs(command, options->codecs);
  command.add_option("--columns", options->columns, "Values of a row of all_to_all")
      .takes("N", above_zero());
  add_sweep(command, *options);
  command.callback([options] { run_collectives(*options); });
}

}  // namespace tersor::bench
