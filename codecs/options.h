// How a codec reads the options of its spec. Each option is declared once; its help, its default,
// its errors and its canonical text follow from that.
#pragma once

#include <tersor/codec.h>
#include <tersor/modes.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tersor::encoding {

/// An option that is one of several words; the first one is the default, or the one that is named.
template <typename Value, std::size_t kWords>
struct Choice {
  std::string_view key;
  std::array<std::pair<std::string_view, Value>, kWords> words;
  std::size_t standard = 0;

  /// "rounding=nearest|stochastic (nearest)"
  std::string help() const {
    std::string text = std::string(key) + "=";
    for (const auto& word : words)
      text += (&word == &words[0] ? "" : "|") + std::string(word.first);
    return text + " (" + std::string(words[standard].first) + ")";
  }

  /// "rounding=nearest"; of a number that came from elsewhere, which may stand for no value.
  std::string text(unsigned number) const {
    for (const auto& [word, value] : words)
      if (static_cast<unsigned>(value) == number) return std::string(key) + "=" + std::string(word);
    return std::string(key) + " number " + std::to_string(number);
  }
};

/// The option that all quantisers have.
inline constexpr Choice<Rounding, 2> kRoundingChoice = {
    "rounding", {{{"nearest", Rounding::kNearest}, {"stochastic", Rounding::kStochastic}}}};

/// An option that is a number above `above` and at most `most`.
struct Number {
  std::string_view key;
  double above;
  double most;
  double standard;  ///< outside of that: without the option there is none

  bool holds(double value) const { return value > above && value <= most; }
  /// "density=(0, 1] (0.01)"; "(none)" where there is no default.
  std::string help() const;
  /// "numbers above 0, at most 1"
  std::string range() const;
};

/// The shortest text that reads back as the same number.
std::string number_text(double value);

/// Reads a spec's options one by one and puts together the canonical spec: options that differ from
/// their default, in the order in which they were read.
class OptionReader {
 public:
  /// `codec` gives the keys that messages list.
  OptionReader(const CodecSpec& spec, const CodecInfo& codec);

  /// Throws InvalidArgument that lists the words.
  template <typename Value, std::size_t kWords>
  Value read(const Choice<Value, kWords>& choice) {
    const std::string* text = find(choice.key);
    const auto& standard = choice.words[choice.standard];
    if (text == nullptr) return standard.second;
    for (const auto& [word, value] : choice.words)
      if (word == *text) {
        if (word != standard.first) keep(choice.key, *text);
        return value;
      }
    throw_wrong_value(choice.key, *text, choice.help());
  }

  /// Throws InvalidArgument that shows the range. The canonical spec always names a value that
  /// there is.
  double read(const Number& number);

  /// The canonical spec of what was read.
  CodecSpec canonical() const { return canonical_; }

 private:
  const std::string* find(std::string_view key) const;
  void keep(std::string_view key, std::string text);
  [[noreturn]] void throw_wrong_value(std::string_view key, const std::string& text,
                                      const std::string& help) const;

  const CodecSpec& spec_;
  CodecSpec canonical_;
};

}  // namespace tersor::encoding
