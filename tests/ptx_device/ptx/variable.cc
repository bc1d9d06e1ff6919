// Variables and their initial values.
#include "tests/ptx_device/ptx/reader.h"

#include <algorithm>

namespace ptx {
namespace {

/// Parses the directives before a name. Returns the size of an element in bytes.
std::size_t parse_type(Reader& in, Variable& variable) {
  static const char* const kIgnored[] = {"ptr", "global", "const", "shared", "local", "volatile"};
  std::string type;
  while (in.peek() == '.') {
    const std::string word = in.dotted().substr(1);
    if (word == "align")
      variable.align = static_cast<unsigned>(in.number());
    else if (word == "attribute")
      in.until(')');
    else if (word == "v2" || word == "v4")
      in.fail("vector variable");
    else if (std::find(std::begin(kIgnored), std::end(kIgnored), word) == std::end(kIgnored))
      type = word;
  }
  return type_bytes(type);
}

/// [2][4]; an array of unknown length has count 0.
std::size_t parse_count(Reader& in) {
  std::size_t count = 1;
  while (in.take('[')) {
    count = in.peek() == ']' ? 0 : count * in.number();
    in.need(']');
  }
  return count;
}

/// A number, or the address of a variable: generic(name)+8
void parse_value(Reader& in, Variable& variable, std::size_t bytes) {
  const bool negative = in.take('-');
  std::string word = in.word();
  std::uint64_t bits = 0;
  if (!parse_number(word, bits)) {
    if (word == "generic" && in.take('(')) {
      word = in.word();
      in.need(')');
    }
    if (in.take('+')) bits = in.number();
    variable.addresses.emplace_back(variable.init.size(), word);
  }
  if (negative) bits = -bits;
  for (std::size_t i = 0; i < bytes; ++i)
    variable.init.push_back(static_cast<std::uint8_t>(bits >> (8 * i)));
}

/// A value, or a (nested) list of values.
void parse_values(Reader& in, Variable& variable, std::size_t bytes) {
  if (!in.take('{')) return parse_value(in, variable, bytes);
  do parse_values(in, variable, bytes);
  while (in.take(','));
  in.need('}');
}

}  // namespace

Variable parse_variable(Reader& in) {
  Variable variable;
  const std::size_t element = parse_type(in, variable);
  variable.align = std::max(variable.align, static_cast<unsigned>(element));
  variable.name = in.word();
  variable.bytes = parse_count(in) * element;
  if (!in.take('=')) return variable;
  parse_values(in, variable, element);
  if (variable.bytes == 0) variable.bytes = variable.init.size();
  variable.init.resize(variable.bytes);
  return variable;
}

}  // namespace ptx
