// What ranks agree on, field by field, so that an error can say in which one they differ. Ranks
// tell each other a hash of all fields alone (Signature, FNV-1a). But each knows its own fields, a
// hash can be run backwards from its end, and a field holds one of few values: where a single field
// differs, it is found.
#pragma once

#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

class Fields {
 public:
  /// The little-endian bytes of a number or an enumerator; `words` are what its values are called,
  /// where they are no numbers.
  template <typename T>
  requires(std::is_integral_v<T> ||
           std::is_enum_v<T>) Fields& add(std::string_view name, T value,
                                          std::vector<std::string> words = {}) {
    std::string bytes;
    auto bits = static_cast<std::uint64_t>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8)
      bytes.push_back(static_cast<char>(bits & 0xff));
    return append({std::string(name), std::move(bytes), Kind::kNumber, std::move(words)});
  }

  /// The characters and a NUL.
  Fields& add(std::string_view name, std::string_view text);
  /// The same of a codec's spec, which every codec's may take the place of.
  Fields& add_codec(std::string_view spec);
  /// A number behind what says of what it is, where it is not 0.
  Fields& add_unless_zero(std::string_view name, std::uint32_t number, std::string mark = {});

  /// What follows, up to the next call, is of a thing of this name, one of several in an order.
  Fields& begin(std::string_view thing);
  /// What follows is of none.
  void end() { thing_ = 0; }

  std::uint64_t signature() const { return after(fields_.size()); }

  /// "codec is int4 there, int8 on this rank", of the only field in which a call of the signature
  /// `other` differs, beside the algorithm, which follows from others; empty where none is found.
  std::string difference(std::uint64_t other) const;

 private:
  enum class Kind : std::uint8_t { kNumber, kText, kCodec, kUnlessZero };
  struct Field {
    std::string name;
    std::string bytes;
    Kind kind;
    std::vector<std::string> words = {};
    std::string mark = {};  // before a number that is not 0
    std::size_t thing = 0;  // 0: of none
  };
  class Search;

  Fields& append(Field field);
  std::uint64_t after(std::size_t fields) const;

  std::vector<Field> fields_;
  std::vector<std::string> things_ = {""};
  std::size_t thing_ = 0;
};

/// The text of an error, with what differs behind it where it tells of two signatures
/// (comm/transport/host/signatures.h) of which one is that of these fields, perhaps with bits that
/// both have flipped.
std::string explained(std::string text, const Fields& own);

}  // namespace tersor
