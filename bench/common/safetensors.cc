// The .safetensors format: a header's length (u64), a JSON header, and the bytes of all tensors
// without gaps.

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/common/tensors.h"

namespace tersor::bench {
namespace {

using Json = nlohmann::ordered_json;
using Event = Json::parse_event_t;

constexpr std::size_t kLengthBytes = 8;
constexpr const char* kMetadata = "__metadata__";

/// A tensor's entry in the header. The tensor's bytes are [begin, end), counted from the end of the
/// header.
struct Entry {
  std::string name, type;
  std::vector<std::size_t> shape;
  std::size_t begin = 0, end = 0;
};

std::string_view header_of(std::string_view bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < kLengthBytes)
    throw InvalidArgumentError("is no .safetensors file: it is too short");
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (length > bytes.size() - kLengthBytes)
    throw InvalidArgumentError(
        fmt::format("the header is cut short: it has {} bytes, and {} are there", length,
                    bytes.size() - kLengthBytes));
  return bytes.substr(kLengthBytes, length);
}

/// Rejects duplicate names, because the library would use the last duplicate. Also rejects nesting
/// deeper than the format's, because copying a value recurses.
Json parse_header(std::string_view text) {
  std::set<std::string> names;
  const auto on_key = [&](int depth, Event event, const Json& key) {
    if (depth > 2 && (event == Event::array_start || event == Event::object_start))
      throw InvalidArgumentError("the header is damaged: it is nested too deeply");
    if (depth == 1 && event == Event::key && !names.insert(key).second)
      throw InvalidArgumentError(
          fmt::format("tensor \"{}\" appears twice", key.get<std::string>()));
    return true;
  };
  return Json::parse(text, on_key);
}

/// Accepts only unsigned numbers: the library would convert 1.9 to 1 and -1 to 2^64 - 1.
std::size_t natural(const Json& value) {
  if (!value.is_number_unsigned())
    throw InvalidArgumentError(
        fmt::format("the header is damaged: {} is not a size", value.dump()));
  return value;
}

Entry entry_of(const std::string& name, const Json& description) {
  Entry entry{.name = name, .type = description.at("dtype")};
  for (const Json& size : description.at("shape")) entry.shape.push_back(natural(size));
  entry.begin = natural(description.at("data_offsets").at(0));
  entry.end = natural(description.at("data_offsets").at(1));
  return entry;
}

/// Returns the entries in the order of their bytes.
std::vector<Entry> entries_of(std::string_view header) {
  std::vector<Entry> entries;
  try {
    const Json parsed = parse_header(header);
    if (!parsed.is_object())
      throw InvalidArgumentError("the header is damaged: it is not an object");
    for (const auto& [name, value] : parsed.items())
      if (name != kMetadata) entries.push_back(entry_of(name, value));
  } catch (const Json::exception& error) {
    throw InvalidArgumentError(fmt::format("the header is damaged: {}", error.what()));
  }
  std::ranges::stable_sort(entries, {}, &Entry::begin);
  return entries;
}

void check_offsets(const Entry& entry, std::size_t expected_begin, std::size_t limit) {
  const auto fail = [&](const std::string& what) {
    throw InvalidArgumentError(fmt::format("tensor \"{}\" {}", entry.name, what));
  };
  if (entry.begin > entry.end || entry.end > limit)
    fail(fmt::format("ends at byte {} of {}", entry.end, limit));
  if (entry.begin != expected_begin)
    fail(fmt::format("begins at byte {}, expected {}", entry.begin, expected_begin));
}

}  // namespace

std::vector<Tensor> parse_safetensors(std::string_view bytes) {
  const std::string_view header = header_of(bytes);
  const std::string_view rest = bytes.substr(kLengthBytes + header.size());
  std::vector<Tensor> tensors;
  std::size_t end = 0;
  for (const Entry& entry : entries_of(header)) {
    check_offsets(entry, end, rest.size());
    end = entry.end;
    tensors.push_back(make_tensor(entry.name, entry.type, entry.shape,
                                  rest.substr(entry.begin, end - entry.begin)));
  }
  if (end != rest.size())
    throw InvalidArgumentError(
        fmt::format("{} bytes of values, of which tensors have {}", rest.size(), end));
  return tensors;
}

void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors) {
  Json header;
  std::size_t end = 0;
  for (const Tensor& tensor : tensors) {
    const std::size_t begin = std::exchange(end, end + tensor.values.size() * sizeof(float));
    const std::vector<std::size_t> flat = {tensor.values.size()};
    header[tensor.name] = {{"dtype", "F32"},
                           {"shape", tensor.shape.empty() ? flat : tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text;
  for (const Tensor& tensor : tensors)
    file.write(reinterpret_cast<const char*>(tensor.values.data()),
               static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
  if (!file.flush())
    throw Error(fmt::format("cannot write {}: {}", path.string(), strerror(errno)));
}

}  // namespace tersor::bench
