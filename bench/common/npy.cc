// A small .npy reader that checks the header against the file.

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <charconv>

#include "bench/common/tensors.h"

namespace tersor::bench {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

/// The header's dictionary, and the offset of the values.
struct Header {
  std::string_view text;
  std::size_t values_at;
};

Header find_header(std::string_view bytes) {
  if (!bytes.starts_with(kMagic) || bytes.size() < 12)
    throw InvalidArgumentError("not a .npy file");
  const unsigned version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3)
    throw InvalidArgumentError(fmt::format("format version {} is not known", version));
  const std::size_t width = version == 1 ? 2 : 4;  // of the header's length field
  std::size_t length = 0;
  for (std::size_t i = width; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(bytes[8 + i]);
  const std::size_t begin = 8 + width;
  if (length > bytes.size() - begin) throw InvalidArgumentError("the header is cut short");
  return {bytes.substr(begin, length), begin + length};
}

[[noreturn]] void throw_damaged(const std::string& key) {
  throw InvalidArgumentError("the header is damaged at '" + key + "'");
}

/// Returns the text after `'key':` and blanks.
std::string_view after_key(std::string_view header, const std::string& key) {
  const std::string quoted = "'" + key + "':";
  const std::size_t at = header.find(quoted);
  if (at == header.npos) throw_damaged(key);
  header.remove_prefix(at + quoted.size());
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

/// Returns the text of `key` between `open` and the next `close`.
std::string_view enclosed(std::string_view header, const std::string& key, char open, char close) {
  const std::string_view rest = after_key(header, key);
  const std::size_t end = rest.find(close, 1);
  if (!rest.starts_with(open) || end == rest.npos) throw_damaged(key);
  return rest.substr(1, end - 1);
}

bool is_fortran_order(std::string_view header) {
  const std::string_view order = after_key(header, "fortran_order");
  if (!order.starts_with("True") && !order.starts_with("False")) throw_damaged("fortran_order");
  return order.starts_with("True");
}

/// Returns the dimensions, outermost first. NumPy writes decimal integers, separated by commas and
/// blanks.
std::vector<std::size_t> dimensions_of(std::string_view header) {
  std::string_view shape = enclosed(header, "shape", '(', ')');
  std::vector<std::size_t> dimensions;
  while (shape.remove_prefix(std::min(shape.find_first_not_of(' '), shape.size())),
         !shape.empty()) {
    std::size_t& size = dimensions.emplace_back();
    const auto [end, error] = std::from_chars(shape.begin(), shape.end(), size);
    shape.remove_prefix(static_cast<std::size_t>(end - shape.begin()));
    shape.remove_prefix(std::min(shape.find_first_not_of(' '), shape.size()));
    if (error != std::errc() || !(shape.empty() || shape.starts_with(','))) throw_damaged("shape");
    if (!shape.empty()) shape.remove_prefix(1);
  }
  if (is_fortran_order(header)) std::ranges::reverse(dimensions);
  return dimensions;
}

}  // namespace

Tensor parse_npy(const std::string& name, std::string_view bytes) {
  const Header header = find_header(bytes);
  const std::string_view type = enclosed(header.text, "descr", '\'', '\'');
  return make_tensor(name, type, dimensions_of(header.text), bytes.substr(header.values_at));
}

}  // namespace tersor::bench
