// `tersor-bench codecs`: the loss of codecs on tensors, and the bits per value. Encodes and decodes
// each tensor once, without timing; tersor-microbench times codecs.

#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/threads.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "bench/commands.h"
#include "bench/common/arguments.h"
#include "bench/common/records.h"
#include "bench/common/samples.h"
#include "bench/common/table.h"
#include "codecs/loss.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kErrorSeed = 1;

struct CodecsOptions {
  std::vector<std::string> codecs = {"none",
                                     "bf16",
                                     "f16",
                                     "int8",
                                     "int4",
                                     "int8:rounding=stochastic",
                                     "int4:rounding=stochastic",
                                     "topk:density=0.01",
                                     "topk:density=0.001"};
  bool all_codecs = false;  ///< True to replace `codecs` by all codecs
  std::size_t count = kDefaultCount;
  std::string dtype = "f32";
  std::string source = "normal";
  unsigned threads = 0;
  std::filesystem::path json;
};

/// The loss of a codec on a tensor.
struct CodecError : CodecLoss {
  std::string codec, tensor;
  std::size_t count = 0;
  std::size_t ranks = 1;  ///< number of ranks with shared levels

  double bits() const {
    return 8 * static_cast<double>(payload_bytes) / static_cast<double>(count);
  }
  double share_lost() const { return relative_error() * relative_error(); }
};

CodecError measure(const std::string& spec, const std::string& tensor, ConstValueSpan gradient,
                   Threads& threads) {
  const PlannedCodec codec = plan_without_feedback(
      spec, {.count = gradient.count(), .dtype = gradient.dtype(), .threads = &threads});
  return {measure_loss(codec, gradient), spec, tensor, gradient.count(),
          codec.has_frames() ? 1 : kNominalRanks};
}

Record record_of(const CodecError& error, const CodecsOptions& options) {
  return {{"benchmark", "codecs"},
          {"codec", error.codec},
          {"operation", "error"},
          {"dtype", options.dtype},
          {"count", error.count},
          {"data", std::filesystem::path(options.source).filename().string()},
          {"tensor", error.tensor},
          {"ranks", error.ranks},
          {"payload_bytes", error.payload_bytes},
          {"bits", error.bits()},
          {"energy_lost", error.share_lost()},
          {"relative_error", error.relative_error()},
          {"norm", std::sqrt(error.energy)}};
}

Table<CodecError> print_head(const std::vector<std::string>& codecs,
                             const std::vector<SampleTensor>& tensors) {
  return Table<CodecError>(
      {{{"codec", "", longest(codecs), Align::kLeft}, &CodecError::codec},
       {{"tensor", "", longest(tensors, &SampleTensor::name), Align::kLeft}, &CodecError::tensor},
       {{"count", "values", 8}, [](auto& error) { return format_count(error.count); }},
       {{"bits", "a value", 7}, [](auto& error) { return fmt::format("{:.3f}", error.bits()); }},
       {{"error", "energy", 8}, [](auto& error) { return format_error(error.share_lost()); }},
       {{"error", "relative", 8},
        [](auto& error) { return format_error(error.relative_error()); }}});
}

/// The codecs without feedback, because feedback sends the loss of a step in later steps. Codecs of
/// matrices are left out, because the tensors have no shape here.
std::vector<std::string> plain_codecs(const CodecsOptions& options) {
  std::vector<std::string> plain;
  for (const std::string& spec : options.all_codecs ? all_specs() : options.codecs)
    if (!options.all_codecs || !make_codec(spec)->traits().needs_shape)
      plain.push_back(with_feedback(spec, Feedback::kNone));
  return deduplicated(plain);
}

void measure_errors(const CodecsOptions& options) {
  const SampleSource source(options.source);
  const std::vector<SampleTensor> tensors = source.tensors(options.count);
  const Dtype dtype = parse_gradient_dtype(options.dtype);
  const std::vector<std::string> codecs = plain_codecs(options);
  RecordFile records(options.json);
  Threads threads(options.threads);
  fmt::print("{}; {} values\n\n", machine_name(), options.source);
  const Table table = print_head(codecs, tensors);
  for (const SampleTensor& tensor : tensors) {
    const Buffer buffer(tensor.count * dtype_bytes(dtype));
    const ValueSpan gradient = buffer.values(tensor.count, dtype);
    source.fill(gradient, kErrorSeed, tensor.first);
    for (const std::string& spec : codecs) {
      const CodecError error = measure(spec, tensor.name, gradient, threads);
      table.print(error);
      records.add(record_of(error, options));
    }
  }
}

}  // namespace

void add_codecs_command(CLI::App& program) {
  const auto options = std::make_shared<CodecsOptions>();
  CLI::App& command = *program.add_subcommand(
      "codecs",
      "Prints the error and the bits per value of codecs; tersor-microbench times codecs");
  add_codecs(command, options->codecs);
  command.add_flag(
      "--all-codecs", options->all_codecs,
      "Instead: each codec there is, at its defaults and with every value of an option");
  add(command, "--count", options->count, "Values of a distribution; K, M and G are 1024s", "N",
      size_suffix());
  add_dtype(command, options->dtype);
  add_data(command, options->source);
  add_codec_threads(command, options->threads);
  add_json(command, options->json);
  command.callback([options] { measure_errors(*options); });
}

}  // namespace tersor::bench
