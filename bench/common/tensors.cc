// Chooses the reader by the file's extension, and checks the tensors of all readers.

#include "bench/common/tensors.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <numeric>
#include <type_traits>

#include "kernels/scalar/convert.h"

namespace tersor::bench {
namespace {

/// Reads a value at any alignment.
template <typename T>
float read_value(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (std::is_floating_point_v<T>)
    return static_cast<float>(value);
  else
    return kernels::to_f32(value);
}

struct ValueType {
  std::string_view name;
  std::size_t bytes;
  float (*read)(const char* at);
};

constexpr ValueType kValueTypes[] = {{"<f2", 2, read_value<F16>},    {"<f4", 4, read_value<float>},
                                     {"<f8", 8, read_value<double>}, {"F16", 2, read_value<F16>},
                                     {"BF16", 2, read_value<Bf16>},  {"F32", 4, read_value<float>}};

std::size_t count_of(const std::string& name, std::span<const std::size_t> shape) {
  std::size_t count = 1;
  for (const std::size_t size : shape)
    if (__builtin_mul_overflow(count, size, &count))
      throw InvalidArgumentError(
          fmt::format("tensor \"{}\" has more values than memory holds", name));
  return count;
}

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) throw InvalidArgumentError("is a folder");
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw InvalidArgumentError(strerror(errno));
  if (bytes.empty()) throw InvalidArgumentError("is empty");
  return bytes;
}

std::vector<Tensor> read_by_extension(const std::filesystem::path& path) {
  if (path.extension() == ".npy") return {parse_npy(path.filename().string(), read_file(path))};
  return parse_safetensors(read_file(path));
}

std::string find_defect(const Tensor& tensor) {
  if (!tensor.defect.empty()) return tensor.defect;
  if (tensor.values.empty()) return "has no values";
  if (!std::ranges::all_of(tensor.values, [](float value) { return std::isfinite(value); }))
    return "holds values that are not finite in f32";
  return "";
}

void remove_unusable(const std::string& file, std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors)
    if (const std::string reason = find_defect(tensor); !reason.empty())
      tensor.defect = fmt::format("tensor \"{}\" {}", tensor.name, reason);
  const auto fit = [](const Tensor& tensor) { return tensor.defect.empty(); };
  if (std::ranges::none_of(tensors, fit)) throw InvalidArgumentError(tensors.front().defect);
  for (const Tensor& tensor : tensors)
    if (!fit(tensor)) fmt::print(stderr, "{}: left out: {}\n", file, tensor.defect);
  std::erase_if(tensors, std::not_fn(fit));
}

}  // namespace

std::size_t Tensor::columns() const {
  if (shape.size() < 2) return 0;
  return std::accumulate(shape.begin() + 1, shape.end(), std::size_t{1}, std::multiplies{});
}

bool is_tensor_file(const std::string& name) {
  return name.ends_with(".npy") || name.ends_with(".safetensors");
}

std::vector<Tensor> read_tensors(const std::filesystem::path& path) try {
  std::vector<Tensor> tensors = read_by_extension(path);
  if (tensors.empty()) throw InvalidArgumentError("holds no tensors");
  remove_unusable(path.string(), tensors);
  return tensors;
} catch (const InvalidArgumentError& error) {
  throw InvalidArgumentError(fmt::format("{}: {}", path.string(), error.what()));
}

Tensor make_tensor(const std::string& name, std::string_view type, std::vector<std::size_t> shape,
                   std::string_view bytes) {
  const auto known = std::ranges::find(kValueTypes, type, &ValueType::name);
  if (known == std::end(kValueTypes))
    return {
        .name = name,
        .defect = fmt::format("is of {:.20}; F32, BF16 and F16, <f2, <f4 and <f8 are read", type)};
  const std::size_t count = count_of(name, shape);
  if (bytes.size() % known->bytes != 0 || bytes.size() / known->bytes != count)
    throw InvalidArgumentError(
        fmt::format("tensor \"{}\" has {} bytes of values, its shape says {} of {} bytes", name,
                    bytes.size(), count, known->bytes));
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = known->read(bytes.data() + i * known->bytes);
  return {name, std::move(values), std::move(shape)};
}

}  // namespace tersor::bench
