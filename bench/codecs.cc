// `tersor-bench codecs`: every operation of every codec against a plain loop over as many bytes.
// Google Benchmark runs the cases; operation and baseline are timed in turns, and the medians over
// its repetitions are what is reported. With --device cuda bench/device does it all.

#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/error.h>
#include <tersor/stream.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/codec_case.h"
#include "bench/codec_errors.h"
#include "bench/codecs_options.h"
#include "bench/commands.h"
#include "bench/device/names.h"
#include "bench/records.h"
#include "bench/table.h"
#include "bench/timing.h"
#include "bench/topk_operations.h"

namespace tersor::bench {
namespace {

constexpr const char* kBaselineCounter = "baseline_seconds";

void add_cases(const CodecsOptions& options, CodecCase wanted, const std::string& spec,
               std::vector<CodecCase>& cases) {
  wanted.codec = with_feedback(spec, Feedback::kNone);
  for (const std::string& operation : operations_of(wanted.codec, wanted.count, wanted.dtype)) {
    wanted.operation = operation;
    if (operation == kSelectReference) wanted.threads = 1;
    const bool is_new = std::ranges::find(cases, wanted) == cases.end();
    if (is_new && is_wanted(options, spec, operation)) cases.push_back(wanted);
  }
}

/// Every combination that was asked for; those with one gradient stand together.
std::vector<CodecCase> cases_of(const CodecsOptions& options) {
  CodecCase wanted;
  wanted.dtype = parse_gradient_dtype(options.dtype);
  wanted.checksum = options.checksum == "on" ? Checksum::kOn : Checksum::kOff;
  wanted.threads =
      options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  std::vector<CodecCase> cases;
  for (const std::size_t count : options.counts)
    for (const std::string& isa : options.isas)
      for (const std::string& spec : options.codecs) {
        wanted.count = count;
        wanted.isa = parse_isa(isa);
        add_cases(options, wanted, spec, cases);
      }
  if (cases.empty() && !wants_errors(options))
    throw InvalidArgument("none of the codecs has the operations asked for");
  return cases;
}

/// A case with what was measured, or why it was not.
struct CodecResult {
  CodecCase of;
  CheckedOperation checked;
  std::string skipped;
  double seconds = 0;
  double baseline_seconds = 0;

  double ratio() const { return baseline_seconds / seconds; }
  double gradient_bytes() const {
    return static_cast<double>(of.count) * static_cast<double>(dtype_bytes(of.dtype));
  }
};

Record record_of(const CodecResult& result) {
  const CodecCase& of = result.of;
  return {{"benchmark", "codecs"},
          {"codec", shown_codec(of.codec, of.operation)},
          {"operation", of.operation},
          {"dtype", dtype_name(of.dtype)},
          {"count", of.count},
          {"isa", isa_name(of.isa)},
          {"threads", of.threads},
          {"seconds", result.seconds},
          {"baseline", result.checked.baseline},
          {"baseline_seconds", result.baseline_seconds},
          {"ratio", result.ratio()},
          {"payload_bytes", result.checked.payload_bytes},
          {"workspace_bytes", result.checked.workspace_bytes},
          {"relative_error", result.checked.relative_error},
          {"checksum", of.checksum == Checksum::kOn}};
}

Table table_for(const std::vector<CodecCase>& cases) {
  std::vector<std::string> codecs, operations;
  for (const CodecCase& of : cases) {
    codecs.push_back(shown_codec(of.codec, of.operation));
    operations.push_back(of.operation);
  }
  return Table({{"codec", "", longest(codecs), Align::kLeft},
                {"operation", "", longest(operations), Align::kLeft},
                {"count", "values", 6},
                {"isa", "", 8, Align::kLeft},
                {"threads"},
                {"time", "median", 8},
                {"gradient", "GB/s", 8},
                {"baseline", "", 8, Align::kLeft},
                {"ratio", "to it", 6},
                {"smaller", "by", 8},
                {"error", "relative", 8}});
}

std::vector<std::string> cells_of(const CodecResult& result) {
  const CodecCase& of = result.of;
  const double payload = static_cast<double>(result.checked.payload_bytes);
  return {shown_codec(of.codec, of.operation),
          of.operation,
          format_count(of.count),
          std::string(isa_name(of.isa)),
          std::to_string(of.threads),
          format_seconds(result.seconds),
          fmt::format("{:.2f}", result.gradient_bytes() / result.seconds / 1e9),
          result.checked.baseline,
          fmt::format("{:.3f}", result.ratio()),
          fmt::format("{:.2f}x", result.gradient_bytes() / payload),
          format_error(result.checked.relative_error)};
}

/// Turns what Google Benchmark measured of a case into a row and a record.
class CodecReporter : public benchmark::BenchmarkReporter {
 public:
  CodecReporter(std::map<std::string, CodecResult>& results, const Table& table,
                RecordFile& records)
      : results_(results), table_(table), records_(records) {}

  bool ReportContext(const Context&) override {
    table_.print_head();
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    if (runs.front().run_type != Run::RT_Iteration) return;
    if (runs.front().error_occurred) return report_skipped(runs.front());
    std::vector<double> seconds, baseline_seconds;
    for (const Run& run : runs) {
      seconds.push_back(run.real_accumulated_time / static_cast<double>(run.iterations));
      baseline_seconds.push_back(run.counters.at(kBaselineCounter).value);
    }
    CodecResult& result = results_.at(runs.front().run_name.function_name);
    result.seconds = median(seconds);
    result.baseline_seconds = median(baseline_seconds);
    table_.print_row(cells_of(result));
    records_.add(record_of(result));
  }

 private:
  void report_skipped(const Run& run) const {
    const CodecResult& result = results_.at(run.run_name.function_name);
    if (result.skipped.empty()) return;
    fmt::print("{}  {}  skipped: {}\n", shown_codec(result.of.codec, result.of.operation),
               result.of.operation, result.skipped);
  }

  std::map<std::string, CodecResult>& results_;
  const Table& table_;
  RecordFile& records_;
};

std::string name_of(const CodecCase& of) {
  return fmt::format("{} {} {} {} {} {}", of.codec, of.operation, dtype_name(of.dtype), of.count,
                     isa_name(of.isa), of.threads);
}

/// One repetition: the operation, then its baseline. After an error nothing more is run; what
/// cannot be measured is left out.
void run_case(benchmark::State& state, CodecCaseRunner& runner, CodecResult& result,
              std::exception_ptr& failure) {
  if (failure || !result.skipped.empty()) return state.SkipWithError("skipped");
  try {
    result.checked = runner.prepare(result.of);
    for (auto _ : state) {
      state.SetIterationTime(runner.time_operation());
      state.counters[kBaselineCounter] = runner.time_baseline();
    }
  } catch (const NotMeasurable& error) {
    result.skipped = error.what();
    state.SkipWithError(error.what());
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
    failure = std::current_exception();
  }
}

void time_cases(const CodecsOptions& options, const std::vector<CodecCase>& cases,
                const SampleSource& source, RecordFile& records) {
  CodecCaseRunner runner(source);
  std::map<std::string, CodecResult> results;
  std::exception_ptr failure;
  for (const CodecCase& of : cases) {
    CodecResult& result = results[name_of(of)];
    result.of = of;
    const auto run = [&](benchmark::State& state) { run_case(state, runner, result, failure); };
    benchmark::RegisterBenchmark(name_of(of).c_str(), run)
        ->Iterations(1)
        ->Repetitions(options.repetitions)
        ->UseManualTime();
  }
  fmt::print("Ratio = time of the baseline / time, as many bytes moved\n\n");
  const Table table = table_for(cases);
  CodecReporter reporter(results, table, records);
  benchmark::RunSpecifiedBenchmarks(&reporter);
  benchmark::ClearRegisteredBenchmarks();
  if (failure) std::rethrow_exception(failure);
}

void run_codecs(CodecsOptions options) {
  const SampleSource source(options.source);
  if (options.counts.empty()) options.counts = {source.count().value_or(kDefaultCount)};
  if (options.isas.empty()) options.isas = {std::string(isa_name(current_isa()))};
  const std::vector<CodecCase> cases = cases_of(options);
  RecordFile records(options.json);
  fmt::print("{}; {} values\n\n", machine_name(), options.source);
  if (wants_errors(options)) measure_errors(options, source, records);
  if (!cases.empty()) time_cases(options, cases, source, records);
}

void run_on_device(const CodecsOptions& options) {
  if (!options.isas.empty())
    throw InvalidArgument(
        "--isa chooses among a CPU's instruction sets; leave it out with --device cuda");
  const Stream stream;  // throws CudaError where this build or this machine has no CUDA
#if TERSOR_HAS_CUDA
  run_codecs_on_device(options, stream.view());
#endif
}

/// What is measured, and on how many values.
void add_subjects(Command& command, CodecsOptions& options) {
  std::vector<std::string> names(operation_names().begin(), operation_names().end());
  names.emplace_back(kErrorOperation);
  names.insert(names.end(), std::begin(kDeviceOnlyOperations), std::end(kDeviceOnlyOperations));
  add_codecs(command, options.codecs);
  command.add_flag(
      "--all-codecs", options.all_codecs,
      "Instead: each codec there is, at its defaults and with every value of an option");
  command
      .add_option("--device", options.device,
                  "cpu, or cuda: device memory and the current GPU, with baselines of its own")
      .transform(one_of({"cpu", "cuda"}))
      .type_name("cpu|cuda")
      .capture_default_str();
  command
      .add_option("--operation", options.operations,
                  "Only these, of those that a codec has:\n  " +
                      fmt::format("{}", fmt::join(names, "\n  ")))
      .transform(one_of(names))
      .type_name("NAME");
  command
      .add_option("--count", options.counts, "Values; K, M and G are 1024s (64M, or all of FILE)")
      .transform(size_suffix())
      .check(above_zero())
      .type_name("N");
  command
      .add_option("--tensor", options.tensor_count, "Values of each of multi-tensor's 500 tensors")
      .transform(size_suffix())
      .check(from_to(1, 1 << 20))
      .type_name("N")
      .capture_default_str();
}

/// How it is measured.
void add_conditions(Command& command, CodecsOptions& options) {
  const auto isa = [](const std::string& name) { return std::string(isa_name(parse_isa(name))); };
  add_dtype(command, options.dtype);
  command.add_option("--isa", options.isas, "portable, avx2, avx512 or neon (the best one)")
      .transform(isa)
      .type_name("ISA");
  command.add_option("--threads", options.threads, "Threads of a codec; 0: one a core")
      .check(from_to(0, 1024))
      .type_name("N")
      .capture_default_str();
  command
      .add_option("--data", options.source,
                  "normal, laplace, student (3 degrees of freedom), narrow, or a FILE.npy, "
                  "FILE.npz or FILE.safetensors of tensors")
      .type_name("DATA")
      .capture_default_str();
  command.add_flag("--feedback", options.feedback, "Measure encode with feedback for all codecs");
  command.add_option("--checksum", options.checksum, "Of the frames: on or off")
      .transform(one_of({"on", "off"}))
      .type_name("on|off")
      .capture_default_str();
  command.add_option("--repetitions", options.repetitions, "Samples, of which the median is taken")
      .check(from_to(1, 10000))
      .type_name("N")
      .capture_default_str();
}

}  // namespace

void add_codecs_command(Command& program) {
  const auto options = std::make_shared<CodecsOptions>();
  Command command = program.add_subcommand(
      "codecs", "Times encode, decode and reduce against plain loops over memory of as many bytes");
  add_subjects(command, *options);
  add_conditions(command, *options);
  add_json(command, options->json);
  command.callback([options] {
    if (options->all_codecs) options->codecs = all_specs();
    if (options->device == "cuda") return run_on_device(*options);
    run_codecs(*options);
  });
}

}  // namespace tersor::bench
