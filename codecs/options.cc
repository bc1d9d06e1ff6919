#include "codecs/options.h"

#include <algorithm>
#include <charconv>

namespace tersor::encoding {
namespace {

[[noreturn]] void throw_unknown_key(const CodecInfo& codec, const std::string& key) {
  std::string known;
  for (const CodecOption& option : codec.options)
    known += (known.empty() ? "" : ", ") + option.help();
  throw InvalidArgumentError("codec " + std::string(codec.name) + " has no option \"" + key +
                             "\"; " +
                             (known.empty() ? "it takes no options" : "its options are: " + known));
}

const CodecOption& option_of(const CodecInfo& codec, const std::string& key) {
  for (const CodecOption& option : codec.options)
    if (key == option.name || key == option.deprecated) return option;
  throw_unknown_key(codec, key);
}

}  // namespace

std::string number_text(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  std::string number(text.data(), end);
  std::erase(number, '+');  // removes the exponent's plus sign, because "+" starts "+ef" in a spec
  return number;
}

CodecOption Number::option() const {
  return {.name = std::string(key),
          .above = above,
          .most = most,
          .standard = holds(standard) ? number_text(standard) : ""};
}

std::string Number::range() const {
  return "numbers above " + number_text(above) + ", at most " + number_text(most);
}

OptionReader::OptionReader(const CodecSpec& spec, const CodecInfo& codec)
    : spec_{spec.name, {}, spec.feedback}, canonical_{spec_} {
  for (const auto& [key, value] : spec.options) {
    const std::string& name = option_of(codec, key).name;
    if (find(name) != nullptr) throw_invalid_value(name, value, "one value");
    spec_.options.emplace_back(name, value);
  }
}

double OptionReader::read(const Number& number) {
  double value = number.standard;
  if (const std::string* text = find(number.key)) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    const bool whole = error == std::errc() && end == text->data() + text->size();
    if (!whole || !number.holds(value)) throw_invalid_value(number.key, *text, number.range());
  }
  if (number.holds(value)) keep(number.key, number_text(value));
  return value;
}

const std::string* OptionReader::find(std::string_view key) const {
  for (const auto& option : spec_.options)
    if (option.first == key) return &option.second;
  return nullptr;
}

void OptionReader::keep(std::string_view key, std::string text) {
  canonical_.options.emplace_back(key, std::move(text));
}

void OptionReader::throw_invalid_value(std::string_view key, const std::string& text,
                                       const std::string& help) const {
  throw InvalidArgumentError("codec " + spec_.name + ": " + std::string(key) + " cannot be \"" +
                             text + "\"; it takes " + help);
}

}  // namespace tersor::encoding

namespace tersor {

std::string CodecOption::range() const {
  if (is_number())
    return "(" + encoding::number_text(above) + ", " + encoding::number_text(most) + "]";
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : "|") + word;
  return text;
}

std::string CodecOption::help() const {
  return name + "=" + range() + " (" + (standard.empty() ? "none" : standard) + ")";
}

}  // namespace tersor
