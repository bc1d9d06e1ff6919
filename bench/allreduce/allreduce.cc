// `tersor-bench allreduce`: the collective, with the columns of nccl-tests, or the GradientReducer
// with a backward pass. `tersor-bench collectives`: collectives without sums or with a root. Ranks
// are threads over an emulated link, or the processes of mpirun. The references always run in
// addition to the requested codecs: `none`, `bf16`, `bf16` with sums in f32, and the library's own
// collective.

#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <string>
#include <vector>

#include "bench/allreduce/allreduce.h"
#include "bench/commands.h"
#include "comm/collectives/grid.h"

namespace tersor::bench {
namespace {

/// The kinds after allreduce and reduce_scatter, which `tersor-bench collectives` measures.
std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const CollectiveKind& kind : kCollectiveKinds)
    if (!kind.sums_for_all) names.emplace_back(kind.name);
  return names;
}

bool sums_for_all(const AllreduceOptions& options) {
  return !std::ranges::count(kind_names(), options.collectives.front());
}

/// The codecs of a collective. The algorithm of rooted collectives is the same for all codecs.
std::vector<CollectiveCase> choices_for(const AllreduceOptions& options,
                                        const CollectiveKind& kind) {
  std::vector<CollectiveCase> choices = choices_of(options);
  if (kind.name == "allreduce") return with_f32_sums(std::move(choices));
  if (!kind.sums_for_all)
    for (CollectiveCase& choice : choices) choice.algorithm = parse_algorithm(options.algorithm);
  return choices;
}

/// The grids for a codec. References use no grid.
std::vector<std::vector<int>> grids_for(const AllreduceOptions& options, const std::string& codec) {
  if (std::ranges::find(options.codecs, codec) != options.codecs.end()) return options.dims;
  return {{}};
}

/// The name of the library's own collective; empty if this collective is not measured.
std::string library_name(const AllreduceOptions& options, const CollectiveKind& kind,
                         const Library* library) {
  if (library == nullptr || options.through_reducer() || options.dtype != "f32") return "";
  if (kind.name == "allreduce") return library->name;
  return library->call ? std::string(kind.library) : "";
}

/// The library's own collective, if available, followed by Tersor's collective with all codecs.
std::vector<CollectiveCase> cases_of(const AllreduceOptions& options, const Fleet& fleet) {
  std::vector<CollectiveCase> cases;
  for (const std::string& name : options.collectives) {
    const CollectiveKind& kind = *std::ranges::find(kCollectiveKinds, name, &CollectiveKind::name);
    if (const std::string own = library_name(options, kind, fleet.library()); !own.empty())
      cases.push_back(
          {.codec = own, .iterations = options.iterations, .by_library = true, .kind = &kind});
    for (CollectiveCase& choice : choices_for(options, kind))
      for (const std::vector<int>& dims : grids_for(options, choice.codec)) {
        choice.automatic = {.codecs = options.allowed, .threads = options.threads};
        choice.dims = dims;
        choice.kind = &kind;
        cases.push_back(choice);
      }
  }
  return cases;
}

Record record_of(const AllreduceOptions& options, const SweepRow& row) {
  const CallResult& result = row.result;
  Record record = record_of(row, options.fleet.transport, options.fleet.link);
  add_parts(record, result, options);
  if (!row.config.kind->sums_for_all) {
    record["benchmark"] = "collectives";
    record["columns"] = row.config.columns;
    for (const char* field : {"dims", "busbw", "identical"}) record.erase(field);
  }
  if (row.config.codec == kAutoCodec) record["chosen"] = result.codec;
  if (!options.through_reducer()) return record;
  record["parameters"] = row.pass.parameters;
  record["backward_seconds"] = row.pass.seconds;
  record["exposed_seconds"] = result.part_seconds;
  record["hidden"] = row.hidden();
  return record;
}

/// "auto: int8"
std::string codec_text(const std::string& codec, const std::string& chosen) {
  return codec == kAutoCodec ? fmt::format("{}: {}", codec, chosen) : codec;
}

std::size_t codec_width(const AllreduceOptions& options, const std::vector<CollectiveCase>& cases) {
  std::vector<std::string> codecs;
  for (const CollectiveCase& one : cases) {
    codecs.push_back(one.codec);
    if (one.codec == kAutoCodec)
      for (const std::string& chosen : options.allowed)
        codecs.push_back(codec_text(one.codec, chosen));
  }
  return longest(codecs);
}

/// "two-shot 16 x 16"
std::string algorithm_text(const SweepRow& row) {
  const bool on_grid = row.result.algorithm == Algorithm::kTwoShot && !row.config.dims.empty();
  return std::string(row.algorithm()) + (on_grid ? " " + text_of(row.config.dims) : "");
}

/// Only for the reducer's steps.
const SweepField kBackwardField{{"backward", "us", 10},
                                [](auto& row) { return format_microseconds(row.pass.seconds); }};
const SweepField kOnWireField{
    {"wire", "us", 10}, [](auto& row) { return format_microseconds(row.result.wire_seconds); }};
const SweepField kExposedField{
    {"exposed", "us", 10}, [](auto& row) { return format_microseconds(row.result.part_seconds); }};
const SweepField kHiddenField{{"hidden", "of wire", 7},
                              [](auto& row) { return fmt::format("{:.1f}%", 100 * row.hidden()); }};

Table<SweepRow> print_head(const AllreduceOptions& options,
                           const std::vector<CollectiveCase>& cases) {
  const SweepField codec{{"codec", "", codec_width(options, cases), Align::kLeft},
                         [](auto& row) { return codec_text(row.config.codec, row.result.codec); }};
  const SweepField wire{{"wire", "B", 10},
                        [](auto& row) { return std::to_string(row.result.sent_bytes); }};
  if (!sums_for_all(options))
    return Table<SweepRow>({kSizeField,
                            {{"collective", "", longest(kind_names()), Align::kLeft},
                             [](auto& row) { return std::string(row.config.kind->name); }},
                            codec,
                            kTimeField,
                            kAlgbwField,
                            wire,
                            kErrorField});
  const std::size_t algorithm_width = options.dims.front().empty() ? 12 : 21;
  std::vector<SweepField> fields = {
      kSizeField,
      kCountField,
      kTypeField,
      codec,
      {{"algorithm", "", algorithm_width, Align::kLeft}, algorithm_text},
      kTimeField,
      kAlgbwField,
      kBusbwField,
      wire,
      kErrorField,
      {{"identical"}, [](auto&) { return "yes"; }}};
  if (options.through_reducer())
    fields.insert(fields.end(), {kBackwardField, kOnWireField, kExposedField, kHiddenField});
  return Table(std::move(fields));
}

/// "wire" means the wire time of the same codec, measured by steps without a backward pass.
double backward_seconds(const AllreduceOptions& options, Fleet& fleet, const CollectiveCase& config,
                        const RankGradients& gradients) {
  if (options.backward != "wire") return std::stod(options.backward);
  return measure_reducer(fleet, config, {options.parameters, 0.0}, gradients).wire_seconds;
}

SweepRow measure(const AllreduceOptions& options, Fleet& fleet, const CollectiveCase& config,
                 const RankGradients& gradients) {
  SweepRow row{.config = config,
               .dtype = gradients.dtype(),
               .count = gradients.count(),
               .ranks = gradients.ranks()};
  if (options.through_reducer()) {
    row.pass = {options.parameters, backward_seconds(options, fleet, config, gradients)};
    row.result = measure_reducer(fleet, config, row.pass, gradients);
  } else {
    row.result = measure_collective(fleet, config, gradients);
  }
  return row;
}

void run(const AllreduceOptions& options) {
  const std::vector<std::size_t> sizes = byte_counts(options);
  const auto fleet = make_fleet(options.fleet);
  std::vector<CollectiveCase> cases = cases_of(options, *fleet);
  const Dtype dtype = parse_gradient_dtype(options.dtype);
  const auto ranks = static_cast<std::size_t>(fleet->ranks());
  RecordFile records(fleet->has_rank0() ? options.json : "");
  fmt::print("{}; {}; time = median of the slowest rank\n\n", machine_name(), fleet->text());
  const Table table = print_head(options, cases);
  for (const std::size_t bytes : sizes) {
    std::size_t count = std::max<std::size_t>(bytes / dtype_bytes(dtype), 1), columns = 1;
    if (!sums_for_all(options)) {  // a shard is whole rows; a shorter shard is a single row
      const std::size_t shard = std::max<std::size_t>(count / ranks, 1);
      columns = std::min(options.columns, shard);
      count = (shard - shard % columns) * ranks;
    }
    const RankGradients gradients(count, dtype, fleet->ranks(), fleet->only_rank());
    for (CollectiveCase& config : cases) {
      config.columns = columns;
      const SweepRow row = measure(options, *fleet, config, gradients);
      table.print(row);
      records.add(record_of(options, row));
      if (options.explain) fmt::print("{}", row.result.explanation);
    }
  }
}

void run_allreduce(const AllreduceOptions& options) {
#if TERSOR_HAS_NCCL
  if (options.fleet.transport == kNcclTransport) {
    if (options.collectives.front() == "reduce_scatter")
      throw InvalidArgumentError("reduce_scatter is not timed over nccl");
    return run_nccl_allreduce(options);
  }
#endif
  if (!options.kill.empty()) return run_loss(options);
  run(options);
}

/// The transports of all measurements, and NCCL for gradients on devices.
std::vector<std::string> transports_of_allreduce() {
  std::vector<std::string> names = transport_names();
#if TERSOR_HAS_NCCL
  names.emplace_back(kNcclTransport);
#endif
  return names;
}

/// Parses "16,16". Throws InvalidArgumentError for other text.
std::vector<int> parse_dims(const std::string& text) {
  std::vector<int> dims;
  const char* next = text.data();
  const char* const end = next + text.size();
  for (bool more = true; more; ++next) {
    const auto [behind, error] = std::from_chars(next, end, dims.emplace_back());
    more = behind != end;
    if (error != std::errc() || (more && *behind != ','))
      throw InvalidArgumentError(fmt::format("\"{}\" is no grid: write e.g. 16,16", text));
    next = behind;
  }
  return dims;
}

std::string checked_backward(const std::string& text) {
  return text == "wire" ? text : seconds_text(text);
}

void add_reducer_options(CLI::App& command, AllreduceOptions& options) {
  const auto parameters =
      command
          .add_option("--parameters", options.parameters,
                      "Go through the GradientReducer: as many equal parameters, ready one after "
                      "the other")
          ->transform(above_zero())
          ->excludes("--collective")
          ->type_name("N");
  add(command, "--kill", options.kill,
      "Kill a rank after so many steps of an elastic reducer, and time the others: one "
      "codec, one size, over tcp",
      "RANK@STEP")
      ->excludes("--collective")
      ->excludes("--dims")
      ->excludes("--iterations");
  add(command, "--backward", options.backward,
      "Time of the backward pass, a sleep, e.g. 0.5 or 500ms; wire: as the wire takes", "TIME",
      checked(checked_backward))
      ->needs(parameters)
      ->excludes("--kill");
}

void add_options(CLI::App& command, AllreduceOptions& options) {
  add_codecs(command, options.codecs, Automatic::kAccepted);
  add_allowed(command, options.allowed);
  command.add_flag("--explain", options.explain, "Print why auto, or the reducer, chose so");
  add(command, "--collective", options.collectives.front(),
      "allreduce or reduce_scatter; algorithms of the latter are auto and hierarchical",
      "allreduce|reduce_scatter", one_of({"allreduce", "reduce_scatter"}));
  command
      .add_option_function<std::vector<std::string>>(
          "--dims",
          [&options](const std::vector<std::string>& grids) {
            options.dims.clear();
            for (const std::string& grid : grids) options.dims.push_back(parse_dims(grid));
          },
          "Of two-shot: grids, each the ranks of its dimensions, e.g. 256 16,16 8,8,4; without it "
          "as few dimensions as have at most 32 ranks each")
      ->type_name("N,...");
  add_sweep(command, options, transports_of_allreduce());
#if TERSOR_HAS_NCCL
  command.add_flag("--graph", options.graph, "Time replays of a captured call (nccl)");
#endif
  add_reducer_options(command, options);
}

}  // namespace

void add_allreduce_command(CLI::App& program) {
  const auto options = std::make_shared<AllreduceOptions>();
  CLI::App& command = *program.add_subcommand(
      "allreduce", "Times the collective, or the GradientReducer beside a backward pass");
  add_options(command, *options);
  command.callback([options] { run_allreduce(*options); });
}

void add_collectives_command(CLI::App& program) {
  const auto options = std::make_shared<AllreduceOptions>();
  options->collectives = kind_names();
  options->codecs = {"int8", "int4"};
  CLI::App& command = *program.add_subcommand(
      "collectives",
      "Times broadcast, reduce, gather, scatter, all_to_all and send_receive, beside MPI's over "
      "MPI");
  add(command, "--collective", options->collectives, "Which of them", "NAME", one_of(kind_names()));
  add_codecs(command, options->codecs);
  add(command, "--columns", options->columns, "Values of a row of all_to_all", "N", above_zero());
  add_sweep(command, *options);
  command.callback([options] { run(*options); });
}

}  // namespace tersor::bench
