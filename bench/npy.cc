// A small .npy reader that checks what the header says against the file.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <regex>

#include "bench/tensors.h"
#include "kernels/scalar/convert.h"

namespace tersor::bench {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

/// The header's dictionary, and where the values begin.
struct Header {
  std::string text;
  std::size_t values_at;
};

Header find_header(const std::string& where, std::string_view bytes) {
  if (!bytes.starts_with(kMagic) || bytes.size() < 12) refuse_file(where, "not a .npy file");
  const unsigned version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3)
    refuse_file(where, fmt::format("format version {} is not known", version));
  const std::size_t width = version == 1 ? 2 : 4;  // of the header's length
  std::size_t length = 0;
  for (std::size_t i = width; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(bytes[8 + i]);
  const std::size_t begin = 8 + width;
  if (length > bytes.size() - begin) refuse_file(where, "the header is cut short");
  return {std::string(bytes.substr(begin, length)), begin + length};
}

/// The one match of `pattern`'s group in the header.
std::string field(const std::string& where, const std::string& header, const std::string& pattern) {
  std::smatch match;
  if (!std::regex_search(header, match, std::regex(pattern)))
    refuse_file(where, "the header is damaged: " + header);
  return match[1];
}

/// Outermost first. In double, so that no header can make their product wrap around.
std::vector<double> dimensions_of(const std::string& where, const std::string& header) {
  const std::string shape = field(where, header, "'shape': *\\(([^)]*)\\)");
  std::vector<double> dimensions;
  const std::regex number("[0-9]+");
  for (std::sregex_iterator it(shape.begin(), shape.end(), number), end; it != end; ++it)
    dimensions.push_back(std::strtod(it->str().c_str(), nullptr));
  if (field(where, header, "'fortran_order': *(True|False)") == "True")
    std::ranges::reverse(dimensions);
  return dimensions;
}

std::vector<float> convert(std::string_view bytes, std::size_t value_bytes) {
  if (value_bytes == 2) return values_of_bytes<std::uint16_t>(bytes, kernels::f16_to_f32);
  if (value_bytes == 4) return values_of_bytes<float>(bytes, std::identity());
  return values_of_bytes<double>(bytes, [](double value) { return static_cast<float>(value); });
}

}  // namespace

Tensor parse_npy(const std::string& name, std::string_view bytes, const std::string& where) {
  const Header header = find_header(where, bytes);
  const std::string type = field(where, header.text, "'descr': *'([^']*)'");
  if (type != "<f2" && type != "<f4" && type != "<f8")
    return {.name = name, .unfit = "holds " + type + "; <f2, <f4 and <f8 are read"};
  const std::size_t value_bytes = static_cast<std::size_t>(type[2] - '0');
  const std::vector<double> dimensions = dimensions_of(where, header.text);
  const double count =
      std::accumulate(dimensions.begin(), dimensions.end(), 1.0, std::multiplies{});
  const std::string_view values = bytes.substr(header.values_at);
  if (count * static_cast<double>(value_bytes) != static_cast<double>(values.size()))
    refuse_file(where, fmt::format("has {} bytes of values, its header says {} values of {} bytes",
                                   values.size(), count, value_bytes));
  return {name, convert(values, value_bytes), {dimensions.begin(), dimensions.end()}};
}

}  // namespace tersor::bench
