// `tersor-bench allreduce`: the collective, with the columns of nccl-tests, or the GradientReducer
// with a backward pass. Ranks are threads over an emulated link, or the processes of mpirun. The
// references always run in addition to the requested codecs: `none`, `bf16`, `bf16` with sums in
// f32, and the library's own sum.

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

/// All codecs. The name of the library's sum replaces a codec, if this sum is measured.
std::vector<CodecChoice> all_choices(const AllreduceOptions& options, const Fleet& fleet) {
  if (options.scatters()) return choices_of(options);
  std::vector<CodecChoice> choices = with_f32_sums(choices_of(options));
  if (fleet.library() && !options.through_reducer() && options.dtype == "f32")
    choices.insert(choices.begin(), CodecChoice{fleet.library()->name});
  return choices;
}

AllreduceCase case_of(const AllreduceOptions& options, const Fleet& fleet,
                      const CodecChoice& choice, const std::vector<int>& dims) {
  if (fleet.library() && choice.codec == fleet.library()->name)
    return {.codec = choice.codec, .iterations = options.iterations, .by_library = true};
  return {.codec = choice.codec,
          .algorithm = choice.algorithm,
          .chunk_count = options.chunk_count,
          .threads = options.threads,
          .iterations = options.iterations,
          .automatic = {.codecs = options.allowed, .threads = options.threads},
          .dims = dims,
          .collective = options.scatters() ? Collective::kReduceScatter : Collective::kAllreduce};
}

/// The grids for a codec. References use no grid.
std::vector<std::vector<int>> grids_for(const AllreduceOptions& options, const std::string& codec) {
  if (std::ranges::find(options.codecs, codec) != options.codecs.end()) return options.dims;
  return {{}};
}

Record record_of(const AllreduceOptions& options, const SweepRow& row) {
  const CallResult& result = row.result;
  Record record = record_of(row, options.fleet.transport, options.fleet.link);
  add_parts(record, result, options);
  if (row.codec == kAutoCodec) record["chosen"] = result.codec;
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

std::size_t codec_width(const AllreduceOptions& options, const std::vector<CodecChoice>& choices) {
  std::vector<std::string> codecs;
  for (const CodecChoice& choice : choices) codecs.push_back(choice.codec);
  if (std::ranges::find(codecs, kAutoCodec) != codecs.end())
    for (const std::string& chosen : options.allowed)
      codecs.push_back(codec_text(std::string(kAutoCodec), chosen));
  return longest(codecs);
}

/// "two-shot 16 x 16"
std::string algorithm_text(const SweepRow& row) {
  const bool on_grid = row.result.algorithm == Algorithm::kTwoShot && !row.dims.empty();
  return std::string(row.algorithm()) + (on_grid ? " " + text_of(row.dims) : "");
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
                           const std::vector<CodecChoice>& choices) {
  const std::size_t algorithm_width = options.dims.front().empty() ? 12 : 21;
  std::vector<SweepField> fields = {
      kSizeField,
      kCountField,
      kTypeField,
      {{"codec", "", codec_width(options, choices), Align::kLeft},
       [](auto& row) { return codec_text(row.codec, row.result.codec); }},
      {{"algorithm", "", algorithm_width, Align::kLeft}, algorithm_text},
      kTimeField,
      kAlgbwField,
      kBusbwField,
      {{"wire", "B", 10}, [](auto& row) { return std::to_string(row.result.wire_bytes); }},
      kErrorField,
      {{"identical"}, [](auto&) { return "yes"; }}};
  if (options.through_reducer())
    fields.insert(fields.end(), {kBackwardField, kOnWireField, kExposedField, kHiddenField});
  return Table(std::move(fields));
}

/// "wire" means the wire time of the same codec, measured by steps without a backward pass.
double backward_seconds(const AllreduceOptions& options, Fleet& fleet, const AllreduceCase& wanted,
                        const RankGradients& gradients) {
  if (options.backward != "wire") return std::stod(options.backward);
  return measure_reducer(fleet, wanted, {options.parameters, 0.0}, gradients).wire_seconds;
}

SweepRow measure(const AllreduceOptions& options, Fleet& fleet, const CodecChoice& choice,
                 const std::vector<int>& dims, const RankGradients& gradients) {
  const AllreduceCase wanted = case_of(options, fleet, choice, dims);
  SweepRow row{.codec = choice.codec,
               .by_library = wanted.by_library,
               .count = gradients.count(),
               .dtype = gradients.dtype(),
               .ranks = gradients.ranks(),
               .collective = options.collective,
               .dims = dims};
  if (options.through_reducer()) {
    row.pass = {options.parameters, backward_seconds(options, fleet, wanted, gradients)};
    row.result = measure_reducer(fleet, wanted, row.pass, gradients);
  } else {
    row.result = measure_allreduce(fleet, wanted, gradients);
  }
  return row;
}

void run_allreduce(const AllreduceOptions& options) {
#if TERSOR_HAS_NCCL
  if (options.fleet.transport == kNcclTransport) {
    if (options.scatters()) throw InvalidArgumentError("reduce_scatter is not timed over nccl");
    return run_nccl_allreduce(options);
  }
#endif
  if (!options.kill.empty()) return run_loss(options);
  const std::vector<std::size_t> sizes = byte_counts(options);
  const auto fleet = make_fleet(options.fleet);
  const std::vector<CodecChoice> choices = all_choices(options, *fleet);
  const Dtype dtype = parse_gradient_dtype(options.dtype);
  const int ranks = fleet->ranks();
  RecordFile records(fleet->leads() ? options.json : "");
  fmt::print("{}; {}; time = median of the slowest rank\n\n", machine_name(), fleet->text());
  const Table table = print_head(options, choices);
  for (const std::size_t bytes : sizes) {
    const std::size_t count = std::max<std::size_t>(bytes / dtype_bytes(dtype), 1);
    const RankGradients gradients(count, dtype, ranks, fleet->only_rank());
    for (const CodecChoice& choice : choices)
      for (const std::vector<int>& dims : grids_for(options, choice.codec)) {
        const SweepRow row = measure(options, *fleet, choice, dims, gradients);
        table.print(row);
        records.add(record_of(options, row));
        if (options.explain) fmt::print("{}", row.result.explanation);
      }
  }
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

void add_reducer_options(Command& command, AllreduceOptions& options) {
  const auto parameters =
      command
          .add_option("--parameters", options.parameters,
                      "Go through the GradientReducer: as many equal parameters, ready one after "
                      "the other")
          .transform(above_zero())
          .excludes("--collective")
          .type_name("N");
  command
      .add_option("--kill", options.kill,
                  "Kill a rank after so many steps of an elastic reducer, and time the others: one "
                  "codec, one size, over tcp")
      .transform([](const std::string& text) {
        parse_kill(text);
        return text;
      })
      .excludes("--collective")
      .excludes("--dims")
      .excludes("--iterations")
      .takes("RANK@STEP");
  command
      .add_option("--backward", options.backward,
                  "Time of the backward pass, a sleep, e.g. 0.5 or 500ms; wire: as the wire takes")
      .transform(checked_backward)
      .needs(parameters)
      .excludes("--kill")
      .takes("TIME");
}

void add_options(Command& command, AllreduceOptions& options) {
  add_codecs(command, options.codecs, Automatic::kTaken);
  add_allowed(command, options.allowed);
  command.add_flag("--explain", options.explain, "Print why auto, or the reducer, chose so");
  command
      .add_option("--collective", options.collective,
                  "allreduce or reduce_scatter; algorithms of the latter are auto and hierarchical")
      .takes("allreduce|reduce_scatter", one_of({"allreduce", "reduce_scatter"}));
  command
      .add_option_function(
          "--dims",
          [&options](const std::vector<std::string>& grids) {
            options.dims.clear();
            for (const std::string& grid : grids) options.dims.push_back(parse_dims(grid));
          },
          "Of two-shot: grids, each the ranks of its dimensions, e.g. 256 16,16 8,8,4; without it "
          "as few dimensions as have at most 32 ranks each")
      .transform([](const std::string& grid) {
        parse_dims(grid);
        return grid;
      })
      .type_name("N,...");
  add_sweep(command, options, transports_of_allreduce());
#if TERSOR_HAS_NCCL
  command.add_flag("--graph", options.graph, "Time replays of a captured call (nccl)");
#endif
  add_reducer_options(command, options);
}

}  // namespace

void add_allreduce_command(Command& program) {
  const auto options = std::make_shared<AllreduceOptions>();
  Command command = program.add_subcommand(
      "allreduce", "Times the collective, or the GradientReducer beside a backward pass");
  add_options(command, *options);
  command.callback([options] { run_allreduce(*options); });
}

}  // namespace tersor::bench
