// Encodes and decodes each tensor once, without timing.

#include "bench/codec_errors.h"

#include <fmt/format.h>
#include <tersor/threads.h>

#include <algorithm>
#include <cmath>

#include "bench/arguments.h"
#include "bench/table.h"
#include "codecs/loss.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kErrorSeed = 1;

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
  const PlannedCodec codec =
      plan_alone(spec, {.count = gradient.count(), .dtype = gradient.dtype(), .threads = &threads});
  return {measure_loss(codec, gradient), spec, tensor, gradient.count(),
          codec.has_frames() ? 1 : kSharingRanks};
}

Record record_of(const CodecError& error, const CodecsOptions& options) {
  return {{"benchmark", "codecs"},
          {"codec", error.codec},
          {"operation", kErrorOperation},
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

/// The codecs without feedback. Feedback sends the loss of a step in later steps.
std::vector<std::string> plain_codecs(const CodecsOptions& options) {
  std::vector<std::string> plain;
  for (const std::string& spec : options.codecs)
    plain.push_back(with_feedback(spec, Feedback::kNone));
  return without_repeats(plain);
}

}  // namespace

bool wants_errors(const CodecsOptions& options) {
  const auto& names = options.operations;
  if (!names.empty()) return std::ranges::find(names, kErrorOperation) != names.end();
  return options.source.ends_with(".safetensors");
}

void measure_errors(const CodecsOptions& options, const SampleSource& source, RecordFile& records) {
  const std::size_t count = options.counts.front();
  const std::vector<SampleTensor> tensors = source.tensors(count);
  const Dtype dtype = parse_gradient_dtype(options.dtype);
  const std::vector<std::string> codecs = plain_codecs(options);
  Threads threads(options.threads);
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
  fmt::print("\n");
}

}  // namespace tersor::bench
