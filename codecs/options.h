// The options of a codec's spec. Each option is declared once. Help, default, errors and canonical
// text follow from the declaration.
#pragma once

#include <tersor/codec.h>
#include <tersor/modes.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace tersor::encoding {

/// An option with several words. The default is the first word, or the word at index `standard`.
template <typename Value, std::size_t kWords>
struct Choice {
  std::string_view key;
  std::array<std::pair<std::string_view, Value>, kWords> words;
  std::size_t standard = 0;
  std::string_view deprecated = {};  ///< a former key, accepted for one release

  CodecOption option() const {
    CodecOption option{.name = std::string(key),
                       .standard = std::string(words[standard].first),
                       .deprecated = std::string(deprecated)};
    for (const auto& word : words) option.words.emplace_back(word.first);
    return option;
  }

  /// Returns e.g. "rounding=nearest". `number` may come from a frame and be invalid.
  std::string text(unsigned number) const {
    for (const auto& [word, value] : words)
      if (static_cast<unsigned>(value) == number) return std::string(key) + "=" + std::string(word);
    return std::string(key) + " number " + std::to_string(number);
  }
};

/// The rounding option of all quantisers.
inline constexpr Choice<Rounding, 2> kRoundingChoice = {
    "rounding", {{{"nearest", Rounding::kNearest}, {"stochastic", Rounding::kStochastic}}}};

/// An option with a number above `above` and at most `most`.
struct Number {
  std::string_view key;
  double above;
  double most;
  double standard;  ///< the default; a value outside the range means no default

  bool holds(double value) const { return value > above && value <= most; }
  CodecOption option() const;
  /// Returns e.g. "numbers above 0, at most 1".
  std::string range() const;
};

/// Returns the shortest text that parses to the same number.
std::string number_text(double value);

/// Reads a spec's options and builds the canonical spec: the options with other values than their
/// defaults, in reading order.
class OptionReader {
 public:
  /// `codec` holds the keys. Throws InvalidArgumentError for an unknown key, and for a key that is
  /// given twice under two names.
  OptionReader(const CodecSpec& spec, const CodecInfo& codec);

  /// Throws InvalidArgumentError for an unknown word; the message lists the words.
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
    throw_invalid_value(choice.key, *text, choice.option().help());
  }

  /// Throws InvalidArgumentError for an invalid number; the message shows the range. The canonical
  /// spec always contains the number that was read.
  double read(const Number& number);

  /// Returns the canonical spec of all options read so far.
  CodecSpec canonical() const { return canonical_; }

 private:
  const std::string* find(std::string_view key) const;
  void keep(std::string_view key, std::string text);
  [[noreturn]] void throw_invalid_value(std::string_view key, const std::string& text,
                                        const std::string& help) const;

  CodecSpec spec_;  // without deprecated keys
  CodecSpec canonical_;
};

}  // namespace tersor::encoding
