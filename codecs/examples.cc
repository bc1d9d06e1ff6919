// Implements examples.h. codecs/options.h writes the help text.

#include "codecs/examples.h"

#include "codecs/options.h"

#include <sstream>

namespace tersor::encoding {
namespace {

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> words;
  std::istringstream stream(list);
  for (std::string word; std::getline(stream, word, '|');) words.push_back(word);
  return words;
}

OptionValues values_of(const std::string& help, std::span<const double> shares) {
  const auto equals = help.find('='), end = help.rfind(" (");
  const std::string range = help.substr(equals + 1, end - equals - 1);
  OptionValues option{.key = help.substr(0, equals), .is_number = range.starts_with('(')};
  if (!option.is_number) {
    option.values = split(range);
    return option;
  }
  const double most = std::stod(range.substr(range.find(',') + 1));
  for (const double share : shares) option.values.push_back(number_text(most * share));
  return option;
}

}  // namespace

std::vector<OptionValues> option_values(const CodecInfo& codec, std::span<const double> shares) {
  std::vector<OptionValues> options;
  for (const std::string& help : codec.keys)
    if (!help.ends_with("(none)")) options.push_back(values_of(help, shares));
  return options;
}

}  // namespace tersor::encoding
