// Parses specs: name[:key=value[,key=value]…][+ef].

#include <tersor/spec.h>

#include <tersor/error.h>

#include <algorithm>

namespace tersor {
namespace {

constexpr std::string_view kFeedbackSuffix = "+ef";

[[noreturn]] void throw_malformed(std::string_view text, const std::string& what) {
  throw InvalidArgumentError("codec spec \"" + std::string(text) + "\": " + what +
                             "; a spec reads name[:key=value[,key=value]...][+ef], "
                             "e.g. int8, int4:rounding=stochastic, topk:density=0.01+ef");
}

bool is_word(std::string_view word) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !word.empty() && std::ranges::all_of(word, allowed);
}

/// Removes the suffix from `rest`.
Feedback parse_feedback(std::string_view& rest, std::string_view text) {
  const auto plus = rest.find('+');
  if (plus == std::string_view::npos) return Feedback::kNone;
  if (rest.substr(plus) != kFeedbackSuffix)
    throw_malformed(
        text, "\"" + std::string(rest.substr(plus)) + "\" is not a suffix; the only suffix is +ef");
  rest = rest.substr(0, plus);
  return Feedback::kResidual;
}

/// True for the last option, whose value is a spec.
bool is_result(std::string_view options) { return options.starts_with("result="); }

std::pair<std::string, std::string> parse_option(std::string_view option, std::string_view text) {
  const auto equals = option.find('=');
  if (equals == std::string_view::npos)
    throw_malformed(text, "\"" + std::string(option) + "\" is not key=value");
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = option.substr(equals + 1);
  if (!is_result(option) && (!is_word(key) || !is_word(value)))
    throw_malformed(text, "\"" + std::string(option) + "\" is not key=value");
  return {std::string(key), std::string(value)};
}

void add_option(CodecSpec& spec, std::string_view option, std::string_view text) {
  auto parsed = parse_option(option, text);
  for (const auto& [key, value] : spec.options)
    if (key == parsed.first) throw_malformed(text, "\"" + key + "\" is given twice");
  spec.options.push_back(std::move(parsed));
}

}  // namespace

std::string CodecSpec::text() const {
  std::string text = name;
  for (const auto& [key, value] : options)
    text += (text.size() == name.size() ? ":" : ",") + key + "=" + value;
  if (feedback == Feedback::kResidual) text += kFeedbackSuffix;
  return text;
}

CodecSpec parse_spec(std::string_view text) {
  CodecSpec spec;
  std::string_view rest = text;
  spec.feedback = parse_feedback(rest, text);
  const auto colon = rest.find(':');
  spec.name = rest.substr(0, colon);
  if (!is_word(spec.name)) throw_malformed(text, "the name is missing or malformed");
  if (colon == std::string_view::npos) return spec;
  for (rest = rest.substr(colon + 1);;) {
    const auto comma = is_result(rest) ? std::string_view::npos : rest.find(',');
    add_option(spec, rest.substr(0, comma), text);
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

}  // namespace tersor
