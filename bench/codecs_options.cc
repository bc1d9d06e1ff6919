// See codecs_options.h.

#include "bench/codecs_options.h"

#include <fmt/format.h>
#include <tersor/codec.h>

#include <algorithm>
#include <sstream>

#include "bench/arguments.h"
#include "bench/planned_codec.h"

namespace tersor::bench {
namespace {

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, '|');) words.push_back(word);
  return words;
}

/// The values that help names: "rounding=nearest|stochastic (nearest)", "density=(0, 1] (0.01)".
std::vector<std::string> values_of(const std::string& range) {
  if (!range.starts_with('(')) return words_of(range);
  const double most = std::stod(range.substr(range.find(',') + 1));
  std::vector<std::string> values;
  for (const double share : {10, 100, 1000}) values.push_back(fmt::format("{}", most / share));
  return values;
}

void add_specs(const CodecInfo& codec, std::vector<std::string>& specs) {
  specs.push_back(make_codec(codec.name)->spec().text());
  for (const std::string& help : codec.keys) {
    const auto equals = help.find('='), end = help.rfind(" (");
    for (const auto& value : values_of(help.substr(equals + 1, end - equals - 1)))
      specs.push_back(make_codec(fmt::format("{}:{}={}", codec.name, help.substr(0, equals), value))
                          ->spec()
                          .text());
  }
}

}  // namespace

std::vector<std::string> all_specs() {
  std::vector<std::string> specs;
  for (const CodecInfo& codec : codecs()) add_specs(codec, specs);
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
