
#include "bench/codecs_options.h"

#include <fmt/format.h>
#include <tersor/codec.h>
#include <tersor/isa.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "bench/arguments.h"
#include "bench/codec_errors.h"
#include "bench/codec_operations.h"
#include "bench/device/names.h"
#include "codecs/examples.h"
#include "codecs/planned_codec.h"

namespace tersor::bench {
namespace {

constexpr std::array kShares = {0.1, 0.01, 0.001};  // shares of the maximum of a number

void add_specs(const CodecInfo& codec, std::vector<std::string>& specs) {
  specs.push_back(make_codec(codec.name)->spec().text());
  for (const auto& option : encoding::option_values(codec, kShares))
    for (const std::string& value : option.values)
      specs.push_back(
          make_codec(fmt::format("{}:{}={}", codec.name, option.key, value))->spec().text());
}

/// The names of all operations. Names of operations for devices only come last.
std::vector<std::string> names_to_choose_from() {
  const auto only_on_device = [](const std::string& name) {
    return std::ranges::find(kDeviceOnlyOperations, name) != std::end(kDeviceOnlyOperations);
  };
  std::vector<std::string> names = operation_names();
  const auto others =
      std::stable_partition(names.begin(), names.end(), std::not_fn(only_on_device));
  names.insert(others, std::string(kErrorOperation));
  return names;
}

/// Adds the options for codecs, operations and counts.
void add_subjects(Command& command, CodecsOptions& options) {
  const std::vector<std::string> names = names_to_choose_from();
  add_codecs(command, options.codecs);
  command.add_flag(
      "--all-codecs", options.all_codecs,
      "Instead: each codec there is, at its defaults and with every value of an option");
  command
      .add_option("--device", options.device,
                  "cpu, or cuda: device memory and the current GPU, with baselines of its own")
      .takes("cpu|cuda", one_of({"cpu", "cuda"}));
  command
      .add_option("--operation", options.operations,
                  "Only these, of those that a codec has:\n  " +
                      fmt::format("{}", fmt::join(names, "\n  ")))
      .transform(one_of(names))
      .type_name("NAME");
  command
      .add_option("--count", options.counts, "Values; K, M and G are 1024s (64M, or all of FILE)")
      .transform(size_suffix(above_zero()))
      .type_name("N");
  command
      .add_option("--tensor", options.tensor_count, "Values of each of multi-tensor's 500 tensors")
      .takes("N", size_suffix(from_to(1, 1 << 20)));
}

/// Adds the options for the conditions of a measurement.
void add_conditions(Command& command, CodecsOptions& options) {
  const auto isa = [](const std::string& name) { return std::string(isa_name(parse_isa(name))); };
  add_dtype(command, options.dtype);
  command.add_option("--isa", options.isas, "portable, avx2, avx512 or neon (the best one)")
      .transform(isa)
      .type_name("ISA");
  add_codec_threads(command, options.threads);
  command
      .add_option("--data", options.source,
                  "normal, laplace, student (3 degrees of freedom), narrow, or tensors in FILE.npy "
                  "or FILE.safetensors")
      .takes("DATA");
  command.add_flag("--feedback", options.feedback, "Measure encode with feedback for all codecs");
  command.add_option("--checksum", options.checksum, "Of the frames: on or off")
      .takes("on|off", one_of({"on", "off"}));
  command.add_option("--repetitions", options.repetitions, "Samples, of which the median is taken")
      .takes("N", from_to(1, 10000));
}

}  // namespace

void add_codecs_options(Command& command, CodecsOptions& options) {
  add_subjects(command, options);
  add_conditions(command, options);
}

std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CodecInfo& codec : codecs())
    if (!make_codec(codec.name)->traits().needs_shape) add_specs(codec, specs);
  return without_repeats(specs);
}

bool is_wanted(const CodecsOptions& options, const std::string& spec,
               const std::string& operation) {
  const auto& names = options.operations;
  if (!names.empty()) return std::ranges::find(names, operation) != names.end();
  const bool feedback = options.feedback || parse_spec(spec).feedback != Feedback::kNone;
  return feedback || !operation.starts_with("encode+feedback");
}

std::string shown_codec(const std::string& codec, const std::string& operation) {
  const bool feedback = operation.starts_with("encode+feedback") || operation == "reduce";
  return feedback ? with_feedback(codec, Feedback::kResidual) : codec;
}

}  // namespace tersor::bench
