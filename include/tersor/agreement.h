// Agreement between ranks: the options that must be equal, and the differences between two ranks.
#pragma once

#include <tersor/error.h>
#include <tersor/span.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tersor {

/// Ordered `name=value` pairs and their hash. Ranks compare the hashes. If two hashes differ, one
/// rank sends the pairs, and the other rank finds every difference. Not thread-safe.
class Agreement {
 public:
  /// An option. `item` names a parameter or an edge; empty for an option of the whole call.
  struct Option {
    std::string item;   ///< a parameter or an edge; empty for an option of the whole call
    std::string name;   ///< the option's name
    std::string value;  ///< the option's value as text

    friend bool operator==(const Option&, const Option&) = default;
  };

  /// Adds a number or an enumerator: the hash covers the little-endian bytes. `words[value]` is the
  /// value's text; without words the text is the decimal number.
  template <typename T>
  requires(std::is_integral_v<T> ||
           std::is_enum_v<T>) Agreement& add(std::string_view name, T value,
                                             const std::vector<std::string>& words = {}) {
    hash_.add(value);
    const auto number = static_cast<std::uint64_t>(value);
    return append(name, number < words.size() ? words[number] : decimal(value));
  }

  /// Adds a text: the hash covers the characters and a NUL.
  Agreement& add(std::string_view name, std::string_view text);

  /// Adds a number. The hash covers `mark` and the number; for 0 the hash covers nothing.
  Agreement& add_unless_zero(std::string_view name, std::uint32_t number,
                             std::string_view mark = {});

  /// Assigns later options to an item, until the next `begin` or `end`.
  Agreement& begin(std::string_view item);
  /// Assigns later options to the whole call.
  void end() { item_.clear(); }

  /// Returns the FNV-1a hash (64 bits) of all options.
  std::uint64_t signature() const { return hash_.value(); }
  /// Returns the options in the order of `add`.
  const std::vector<Option>& options() const { return options_; }

  /// Returns every difference between this agreement (of `rank`) and `other`. A missing item counts
  /// as one difference. If only the order of the items differs, the result has the first two items
  /// at the same position.
  std::vector<Difference> differences(const Agreement& other, int rank, int other_rank) const;

  /// Returns all items, names and values, for `parse`.
  std::vector<std::string> strings() const;
  /// Throws WireError if a value is missing. The hash of the result is undefined.
  static Agreement parse(std::span<const std::string> strings);

 private:
  Agreement& append(std::string_view name, std::string value);
  template <typename T>
  static std::string decimal(T value) {
    if constexpr (std::is_enum_v<T>) return std::to_string(static_cast<std::uint64_t>(value));
    if constexpr (std::is_integral_v<T>) return std::to_string(value);
  }

  Signature hash_;
  std::vector<Option> options_;
  std::string item_;
};

/// "codec is int8 on rank 0, int4 on rank 1; ...". Items with the same difference share one clause.
/// `name` gives the name of a rank.
std::string text_of(
    const std::vector<Difference>& differences,
    const std::function<std::string(int)>& name = [](int rank) {
      return "rank " + std::to_string(rank);
    });

/// Strings as bytes, for messages between ranks.
std::vector<std::byte> pack(std::span<const std::string> strings);
/// Throws WireError if bytes are missing or left.
std::vector<std::string> unpack(ConstByteSpan bytes);

}  // namespace tersor
