// See codecs_options.h.

#include "bench/codecs_options.h"

#include <fmt/format.h>
#include <tersor/codec.h>

#include <algorithm>
#include <array>

#include "bench/arguments.h"
#include "codecs/examples.h"
#include "codecs/planned_codec.h"

namespace tersor::bench {
namespace {

constexpr std::array kShares = {0.1, 0.01, 0.001};  // of the largest that a number may be

void add_specs(const CodecInfo& codec, std::vector<std::string>& specs) {
  specs.push_back(make_codec(codec.name)->spec().text());
  for (const auto& option : encoding::option_values(codec, kShares))
    for (const std::string& value : option.values)
      specs.push_back(
          make_codec(fmt::format("{}:{}={}", codec.name, option.key, value))->spec().text());
}

}  // namespace

std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CodecInfo& codec : codecs())
    if (!make_codec(codec.name)->traits().needs_shape) add_specs(codec, specs);
  return without_repeats(specs);
}

bool wants_feedback(const CodecsOptions& options, const std::string& spec) {
  return options.feedback || parse_spec(spec).feedback != Feedback::kNone;
}

bool is_wanted(const CodecsOptions& options, const std::string& spec,
               const std::string& operation) {
  const auto& names = options.operations;
  if (!names.empty()) return std::ranges::find(names, operation) != names.end();
  return wants_feedback(options, spec) || !operation.starts_with("encode+feedback");
}

std::string shown_codec(const std::string& codec, const std::string& operation) {
  const bool feedback = operation.starts_with("encode+feedback") || operation == "reduce";
  return feedback ? with_feedback(codec, Feedback::kResidual) : codec;
}

}  // namespace tersor::bench
