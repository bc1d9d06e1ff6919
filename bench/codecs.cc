// `tersor-bench codecs`: every operation of every codec on a host or a device. Plain loops over as
// many bytes run in alternation with each operation. On a GPU, alternatives without Tersor also
// run. The results are medians over repetitions.

#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/error.h>
#include <tersor/isa.h>
#include <tersor/stream.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/arguments.h"
#include "bench/codec_errors.h"
#include "bench/codec_operations.h"
#include "bench/codecs_options.h"
#include "bench/commands.h"
#include "bench/device/gpu_machine.h"
#include "bench/device/names.h"
#include "bench/records.h"
#include "bench/table.h"
#include "bench/topk_operations.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kGradientSeed = 1;
constexpr const char* kDeviceIsa = "cuda";

/// A measured case.
struct CodecCase {
  std::string codec;  ///< without "+ef"
  std::string operation;
  std::size_t count = 0;
  std::string isa;
  unsigned threads = 1;

  std::string shown_name() const { return shown_codec(codec, operation); }
  bool operator==(const CodecCase&) const = default;
};

/// A case with its results.
struct CodecResult {
  CodecCase of;
  double relative_error = 0;
  std::size_t gradient_bytes = 0, useful_bytes = 0, payload_bytes = 0, workspace_bytes = 0;
  double seconds = 0;
  std::string baseline;
  std::map<std::string, double> reference_seconds;

  double ratio_to(const std::string& reference) const {
    return reference_seconds.at(reference) / seconds;
  }
  double ratio() const { return ratio_to(baseline); }
};

std::string shown_ratio(double ratio) { return fmt::format("{:.3f}", ratio); }

std::string shown_ratio_to(const CodecResult& result, const std::string& reference) {
  const bool measured = result.reference_seconds.contains(reference);
  return measured ? shown_ratio(result.ratio_to(reference)) : "";
}

std::string gigabytes_a_second(std::size_t bytes, double seconds, int digits) {
  return fmt::format("{:.{}f}", static_cast<double>(bytes) / seconds / 1e9, digits);
}

std::string times_smaller(const CodecResult& result) {
  return fmt::format("{:.2f}x", static_cast<double>(result.gradient_bytes) /
                                    static_cast<double>(result.payload_bytes));
}

/// The machines for which a column is shown.
enum class Shown : std::uint8_t { kAlways, kOnHost, kOnDevice };

struct ShownField : Field<CodecResult> {
  Shown shown = Shown::kAlways;
};

const ShownField kFields[] = {
    {{{"codec", "", 0, Align::kLeft}, [](auto& result) { return result.of.shown_name(); }}},
    {{{"operation", "", 0, Align::kLeft}, [](auto& result) { return result.of.operation; }}},
    {{{"count", "values", 6}, [](auto& result) { return format_count(result.of.count); }}},
    {{{"isa", "", 8, Align::kLeft}, [](auto& result) { return result.of.isa; }}, Shown::kOnHost},
    {{{"threads"}, [](auto& result) { return std::to_string(result.of.threads); }}, Shown::kOnHost},
    {{{"time", "median", 8}, [](auto& result) { return format_seconds(result.seconds); }}},
    {{{"gradient", "GB/s", 8},
      [](auto& result) { return gigabytes_a_second(result.gradient_bytes, result.seconds, 2); }},
     Shown::kOnHost},
    {{{"moves", "GB/s", 7},
      [](auto& result) { return gigabytes_a_second(result.useful_bytes, result.seconds, 0); }},
     Shown::kOnDevice},
    {{{"baseline", "", 8, Align::kLeft}, [](auto& result) { return result.baseline; }},
     Shown::kOnHost},
    {{{"baseline", "", 12, Align::kLeft}, [](auto& result) { return result.baseline; }},
     Shown::kOnDevice},
    {{{"ratio", "to it", 6}, [](auto& result) { return shown_ratio(result.ratio()); }}},
    {{{"share", "ratio", 6}, [](auto& result) { return shown_ratio_to(result, "share"); }},
     Shown::kOnHost},
    {{{"smaller", "by", 8}, times_smaller}, Shown::kOnHost},
    {{{"read", "ratio", 6}, [](auto& result) { return shown_ratio_to(result, "read"); }},
     Shown::kOnDevice},
    {{{"memset", "ratio", 6}, [](auto& result) { return shown_ratio_to(result, "memset"); }},
     Shown::kOnDevice},
    {{{"error", "relative", 8}, [](auto& result) { return format_error(result.relative_error); }}},
};

/// Prints the head, with columns wide enough for the names of all cases.
Table<CodecResult> print_head(const Machine& machine, const std::vector<CodecCase>& cases) {
  const Shown other = machine.on_device() ? Shown::kOnHost : Shown::kOnDevice;
  std::vector<Field<CodecResult>> fields;
  for (const ShownField& field : kFields)
    if (field.shown != other) fields.push_back(field);
  fields[0].column.width = longest(cases, &CodecCase::shown_name);
  fields[1].column.width = longest(cases, &CodecCase::operation);
  return Table(std::move(fields));
}

class CodecBenchmark {
 public:
  CodecBenchmark(const CodecsOptions& options, Machine& machine)
      : options_(options),
        machine_(machine),
        source_(std::make_shared<SampleSource>(options.source)),
        dtype_(parse_gradient_dtype(options.dtype)),
        checksum_(options.checksum == "on" ? Checksum::kOn : Checksum::kOff) {
    if (options_.counts.empty()) options_.counts = {source_->count().value_or(kDefaultCount)};
    if (machine.on_device())
      options_.isas = {kDeviceIsa};
    else if (options_.isas.empty())
      options_.isas = {std::string(isa_name(current_isa()))};
  }

  void run() {
    const bool with_errors = !machine_.on_device() && wants_errors(options_);
    const std::vector<CodecCase> cases = all_cases();
    if (cases.empty() && !with_errors)
      throw InvalidArgumentError("none of the codecs has the operations asked for");
    RecordFile records(options_.json);
    print_opening();
    if (with_errors) measure_errors(options_, *source_, records);
    if (!cases.empty()) time_cases(cases, records);
  }

 private:
  /// All requested combinations. Cases with the same gradient are adjacent.
  std::vector<CodecCase> all_cases() const {
    std::vector<CodecCase> cases;
    for (const std::size_t count : options_.counts)
      for (const std::string& isa : options_.isas)
        for (const std::string& spec : options_.codecs) add_cases(spec, count, isa, cases);
    return cases;
  }

  void add_cases(const std::string& spec, std::size_t count, const std::string& isa,
                 std::vector<CodecCase>& cases) const {
    const std::string codec = with_feedback(spec, Feedback::kNone);
    for (const std::string& operation : operations_of(machine_, codec, count, dtype_)) {
      const CodecCase wanted{codec, operation,
                             count_of_operation(operation, dtype_, count, options_.tensor_count),
                             isa, threads_of(operation)};
      const bool is_new = std::ranges::find(cases, wanted) == cases.end();
      if (is_new && is_wanted(options_, spec, operation)) cases.push_back(wanted);
    }
  }

  unsigned threads_of(const std::string& operation) const {
    if (machine_.on_device() || operation == kSelectReference) return 1;
    return options_.threads != 0 ? options_.threads
                                 : std::max(1u, std::thread::hardware_concurrency());
  }

  void print_opening() const {
    if (machine_.on_device())
      fmt::print("{}; {} {} values; ratio = time of the baseline / time, as many bytes moved\n\n",
                 machine_.traits().name, options_.source, options_.dtype);
    else
      fmt::print("{}; {} values\n\n", machine_.traits().name, options_.source);
  }

  void time_cases(const std::vector<CodecCase>& cases, RecordFile& records) {
    if (!machine_.on_device())
      fmt::print("Ratio = time of the baseline / time, as many bytes moved\n\n");
    const Table table = print_head(machine_, cases);
    for (const CodecCase& of : cases) {
      try {
        const CodecResult result = measure(of);
        table.print(result);
        records.add(record_of(result));
      } catch (const NotMeasurable& error) {
        fmt::print("{}  {}  skipped: {}\n", of.shown_name(), of.operation, error.what());
      }
    }
  }

  /// Checks the result, then times the operation.
  CodecResult measure(const CodecCase& of) {
    const std::unique_ptr<CodecOperation> operation = make_operation(of.operation, input_of(of));
    CodecResult result{.of = of,
                       .relative_error = operation->check(),
                       .gradient_bytes = of.count * dtype_bytes(dtype_),
                       .useful_bytes = operation->useful_bytes(),
                       .payload_bytes = operation->payload_bytes(),
                       .workspace_bytes = operation->workspace_bytes()};
    std::vector<TimedCall> calls = operation->references();
    calls.insert(calls.begin(), operation->timed());
    const std::vector<double> seconds = time_alternately(machine_, calls, options_.repetitions);
    result.seconds = seconds.front();
    result.baseline = calls[1].name;
    for (std::size_t i = 1; i < calls.size(); ++i)
      result.reference_seconds[calls[i].name] = seconds[i];
    return result;
  }

  OperationInput input_of(const CodecCase& of) {
    const ConstValueSpan gradient = gradient_of(of.count);
    if (!machine_.on_device()) force_isa(parse_isa(of.isa));
    const unsigned threads = machine_.on_device() ? options_.threads : of.threads;
    if (threads_ == nullptr || (threads != 0 && threads_->count() != threads))
      threads_ = std::make_unique<Threads>(threads);
    return {.codec = of.codec,
            .count = of.count,
            .source = source_,
            .storage = gradient_,
            .gradient = gradient,
            .checksum = checksum_,
            .threads = threads_.get(),
            .machine = &machine_};
  }

  /// A gradient longer than the encoded count, so each step sees other values. The extra length is
  /// small enough for the cache if the gradient fits.
  ConstValueSpan gradient_of(std::size_t count) {
    const std::size_t spare = std::min<std::size_t>(count / 8, std::size_t{1} << 20);
    const std::size_t all = std::max(count, source_->count().value_or(count + spare));
    if (gradient_ == nullptr || gradient_->bytes() != all * dtype_bytes(dtype_)) {
      gradient_ = nullptr;
      gradient_ = std::make_shared<Buffer>(sample_buffer(*source_, all, dtype_, kGradientSeed));
    }
    return gradient_->values(all, dtype_);
  }

  Record record_of(const CodecResult& result) const {
    const CodecCase& of = result.of;
    Record record = {{"benchmark", "codecs"}};
    if (machine_.on_device()) record["device"] = machine_.traits().name;
    record.update(Record{{"codec", of.shown_name()},
                         {"operation", of.operation},
                         {"dtype", dtype_name(dtype_)},
                         {"count", of.count},
                         {"isa", of.isa},
                         {"threads", of.threads}});
    if (machine_.on_device()) record["data"] = options_.source;
    record["seconds"] = result.seconds;
    if (machine_.on_device()) record["useful_bytes"] = result.useful_bytes;
    record.update(Record{{"baseline", result.baseline},
                         {"baseline_seconds", result.reference_seconds.at(result.baseline)},
                         {"ratio", result.ratio()},
                         {"payload_bytes", result.payload_bytes},
                         {"workspace_bytes", result.workspace_bytes},
                         {"relative_error", result.relative_error},
                         {"checksum", checksum_ == Checksum::kOn}});
    for (const auto& [name, seconds] : result.reference_seconds)
      if (name != result.baseline) record[name + "_ratio"] = seconds / result.seconds;
    return record;
  }

  CodecsOptions options_;
  Machine& machine_;
  std::shared_ptr<const SampleSource> source_;
  Dtype dtype_;
  Checksum checksum_;
  std::shared_ptr<const Buffer> gradient_;
  std::unique_ptr<Threads> threads_;
};

void run_on_device(const CodecsOptions& options) {
  if (!options.isas.empty())
    throw InvalidArgumentError(
        "--isa chooses among a CPU's instruction sets; leave it out with --device cuda");
  const Stream stream;  // throws CudaError if this build or this machine has no CUDA
#if TERSOR_HAS_CUDA
  CodecBenchmark(options, *make_gpu_machine(stream.view())).run();
#endif
}

}  // namespace

void add_codecs_command(Command& program) {
  const auto options = std::make_shared<CodecsOptions>();
  Command command = program.add_subcommand(
      "codecs", "Times encode, decode and reduce against plain loops over memory of as many bytes");
  add_codecs_options(command, *options);
  add_json(command, options->json);
  command.callback([options] {
    if (options->all_codecs) options->codecs = all_specs();
    if (options->device == "cuda") return run_on_device(*options);
    CodecBenchmark(*options, *make_cpu_machine()).run();
  });
}

}  // namespace tersor::bench
