// `tersor-bench codecs --device cuda`: every operation of every codec on the current device, in
// turns with a copy and a read of as many bytes, and beside what a user would do without Tersor.

#include <fmt/format.h>
#include <tersor/codec.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/arguments.h"
#include "bench/codecs_options.h"
#include "bench/device/launches.h"
#include "bench/device/operations.h"
#include "bench/device/without_us.h"
#include "bench/records.h"
#include "bench/table.h"
#include "bench/topk_operations.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kDeviceSeed = 1;

struct DeviceCase {
  std::string codec;  ///< without "+ef"
  std::string operation;
  std::size_t count = 0;

  bool operator==(const DeviceCase&) const = default;
};

/// A case with what was measured.
struct DeviceResult {
  DeviceCase of;
  double relative_error = 0;
  std::size_t useful_bytes = 0, payload_bytes = 0, workspace_bytes = 0;
  double seconds = 0;
  std::string baseline;
  std::map<std::string, double> reference_seconds;

  double ratio_to(const std::string& reference) const {
    return reference_seconds.at(reference) / seconds;
  }
  double ratio() const { return ratio_to(baseline); }
};

constexpr std::string_view kOperations[] = {
    kEncode,    kTwoKernels, kFeedback,    kFeedbackFarMiss,  kCubSort, kCubSelect, kDecode,
    kDecodeAdd, kReduce,     kMultiTensor, kMultiTensorGraph, kSmall,   kSmallGraph};

bool has_operation(std::string_view name, const PlannedCodec& codec, bool feedback) {
  if (!codec.has_frames()) return false;
  if (is_without_us(name)) return has_operation_without_us(name, codec);
  if (name == kFeedback) return feedback;
  if (name == kFeedbackFarMiss) return has_topk_operation(name, codec);
  if (name == kReduce) return feedback && codec.reduces();
  if (name == kMultiTensor || name == kMultiTensorGraph) return codec.codec().traits().divisible;
  return true;
}

class DeviceBenchmark {
 public:
  DeviceBenchmark(const CodecsOptions& options, StreamView stream)
      : options_(options),
        stream_(stream),
        gpu_(current_gpu()),
        source_(options.source),
        dtype_(parse_gradient_dtype(options.dtype)),
        checksum_(options.checksum == "on" ? Checksum::kOn : Checksum::kOff),
        threads_(options.threads) {}

  void run() {
    const std::vector<DeviceCase> cases = all_cases();
    RecordFile records(options_.json);
    fmt::print("{}; {} {} values; ratio = time of the baseline / time, as many bytes moved\n\n",
               gpu_.name, options_.source, options_.dtype);
    const Table table = table_for(cases);
    table.print_head();
    for (const DeviceCase& of : cases) {
      const DeviceResult result = measure(of);
      table.print_row(cells_of(result));
      records.add(record_of(result));
    }
  }

 private:
  std::vector<DeviceCase> all_cases() const {
    std::vector<std::size_t> counts = options_.counts;
    if (counts.empty()) counts = {source_.count().value_or(kDefaultCount)};
    std::vector<DeviceCase> cases;
    for (const std::size_t count : counts)
      for (const std::string& spec : options_.codecs) add_cases(spec, count, cases);
    if (cases.empty()) throw InvalidArgument("none of the codecs has the operations asked for");
    return cases;
  }

  void add_cases(const std::string& spec, std::size_t count, std::vector<DeviceCase>& cases) const {
    const std::string codec = with_feedback(spec, Feedback::kNone);
    const PlanFor plan_for{.count = count, .dtype = dtype_};
    const PlannedCodec planned(codec, plan_for);
    const bool feedback = accepts_feedback(codec, plan_for);
    for (const std::string_view name : kOperations) {
      if (!has_operation(name, planned, feedback)) continue;
      const DeviceCase wanted{codec, std::string(name), count_of(name, count)};
      const bool is_new = std::ranges::find(cases, wanted) == cases.end();
      if (is_new && is_wanted(options_, spec, wanted.operation)) cases.push_back(wanted);
    }
  }

  std::size_t count_of(std::string_view operation, std::size_t count) const {
    if (!is_launch_operation(operation)) return count;
    return launch_operation_count(operation, dtype_, options_.tensor_count);
  }

  /// Some values more than are encoded, so that the steps of a training see other gradients.
  ConstValueSpan gradient_of(std::size_t count) {
    const std::size_t spare = std::min<std::size_t>(count / 8, std::size_t{1} << 20);
    const std::size_t most = source_.count().value_or(count + spare);
    const std::size_t all = std::max(count, most);
    if (gradient_.bytes() != all * dtype_bytes(dtype_)) {
      gradient_ = {};
      gradient_ = sample_buffer(source_, all, dtype_, kDeviceSeed);
    }
    return gradient_.values(all, dtype_);
  }

  DeviceInput input_of(const DeviceCase& of) {
    return {.host = {.codec = of.codec,
                     .count = of.count,
                     .gradient = gradient_of(of.count),
                     .checksum = checksum_,
                     .threads = &threads_},
            .source = &source_,
            .stream = stream_,
            .gpu = gpu_};
  }

  std::unique_ptr<DeviceOperation> make(const DeviceCase& of) {
    const DeviceInput input = input_of(of);
    if (is_without_us(of.operation)) return make_operation_without_us(of.operation, input);
    if (is_launch_operation(of.operation)) return make_launch_operation(of.operation, input);
    return make_codec_operation(of.operation, input);
  }

  /// Correct first, then timed.
  DeviceResult measure(const DeviceCase& of) {
    const std::unique_ptr<DeviceOperation> operation = make(of);
    DeviceResult result{.of = of,
                        .relative_error = operation->check(),
                        .useful_bytes = operation->useful_bytes(),
                        .payload_bytes = operation->payload_bytes(),
                        .workspace_bytes = operation->workspace_bytes()};
    std::vector<TimedCall> calls = {operation->timed()};
    for (TimedCall& reference : operation->references()) calls.push_back(std::move(reference));
    const std::vector<double> seconds = time_in_turns(stream_, calls, options_.repetitions);
    result.seconds = seconds.front();
    result.baseline = calls[1].name;
    for (std::size_t i = 1; i < calls.size(); ++i)
      result.reference_seconds[calls[i].name] = seconds[i];
    return result;
  }

  Record record_of(const DeviceResult& result) const {
    const DeviceCase& of = result.of;
    Record record = {{"benchmark", "codecs"},
                     {"device", gpu_.name},
                     {"codec", shown_codec(of.codec, of.operation)},
                     {"operation", of.operation},
                     {"dtype", dtype_name(dtype_)},
                     {"count", of.count},
                     {"isa", "cuda"},
                     {"threads", 1},
                     {"data", options_.source},
                     {"seconds", result.seconds},
                     {"useful_bytes", result.useful_bytes},
                     {"baseline", result.baseline},
                     {"baseline_seconds", result.reference_seconds.at(result.baseline)},
                     {"ratio", result.ratio()},
                     {"payload_bytes", result.payload_bytes},
                     {"workspace_bytes", result.workspace_bytes},
                     {"relative_error", result.relative_error},
                     {"checksum", checksum_ == Checksum::kOn}};
    for (const auto& [name, seconds] : result.reference_seconds)
      if (name != result.baseline) record[name + "_ratio"] = seconds / result.seconds;
    return record;
  }

  static Table table_for(const std::vector<DeviceCase>& cases) {
    std::vector<std::string> codecs, operations;
    for (const DeviceCase& of : cases) {
      codecs.push_back(shown_codec(of.codec, of.operation));
      operations.push_back(of.operation);
    }
    return Table({{"codec", "", longest(codecs), Align::kLeft},
                  {"operation", "", longest(operations), Align::kLeft},
                  {"count", "values", 6},
                  {"time", "median", 8},
                  {"moves", "GB/s", 7},
                  {"baseline", "", 12, Align::kLeft},
                  {"ratio", "to it", 6},
                  {"read", "ratio", 6},
                  {"memset", "ratio", 6},
                  {"error", "relative", 8}});
  }

  static std::string ratio_cell(const DeviceResult& result, const std::string& reference) {
    if (!result.reference_seconds.contains(reference)) return "";
    return fmt::format("{:.3f}", result.ratio_to(reference));
  }

  static std::vector<std::string> cells_of(const DeviceResult& result) {
    const DeviceCase& of = result.of;
    return {shown_codec(of.codec, of.operation),
            of.operation,
            format_count(of.count),
            format_seconds(result.seconds),
            fmt::format("{:.0f}", static_cast<double>(result.useful_bytes) / result.seconds / 1e9),
            result.baseline,
            fmt::format("{:.3f}", result.ratio()),
            ratio_cell(result, "read"),
            ratio_cell(result, "memset"),
            format_error(result.relative_error)};
  }

  const CodecsOptions& options_;
  StreamView stream_;
  Gpu gpu_;
  SampleSource source_;
  Dtype dtype_;
  Checksum checksum_;
  Threads threads_;
  Buffer gradient_;
};

}  // namespace

void run_codecs_on_device(const CodecsOptions& options, StreamView stream) {
  DeviceBenchmark(options, stream).run();
}

}  // namespace tersor::bench
