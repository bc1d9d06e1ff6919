// Chooses the reader by the file's extension, and checks what all of them read.

#include "bench/tensors.h"

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
#include <set>

namespace tersor::bench {
namespace {

std::vector<Tensor> read_by_extension(const std::filesystem::path& path) {
  if (path.extension() == ".npy")
    return {parse_npy(path.filename().string(), read_file(path), path.string())};
  return parse_safetensors(read_file(path), path.string());
}

void check_names(const std::string& where, std::span<const Tensor> tensors) {
  std::set<std::string> names;
  for (const Tensor& tensor : tensors)
    if (!names.insert(tensor.name).second)
      refuse_file(where, fmt::format("tensor \"{}\" stands there twice", tensor.name));
}

std::string why_unfit(const Tensor& tensor) {
  if (!tensor.unfit.empty()) return tensor.unfit;
  if (tensor.values.empty()) return "has no values";
  if (!std::ranges::all_of(tensor.values, [](float value) { return std::isfinite(value); }))
    return "holds values that are not finite in f32";
  return "";
}

void leave_out_unfit(const std::string& where, std::vector<Tensor>& tensors) {
  for (Tensor& tensor : tensors)
    if (const std::string why = why_unfit(tensor); !why.empty())
      tensor.unfit = fmt::format("tensor \"{}\" {}", tensor.name, why);
  const auto fit = [](const Tensor& tensor) { return tensor.unfit.empty(); };
  if (std::ranges::none_of(tensors, fit)) refuse_file(where, tensors.front().unfit);
  for (const Tensor& tensor : tensors)
    if (!fit(tensor)) fmt::print(stderr, "{}: left out: {}\n", where, tensor.unfit);
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

std::vector<Tensor> read_tensors(const std::filesystem::path& path) {
  std::vector<Tensor> tensors = read_by_extension(path);
  if (tensors.empty()) refuse_file(path.string(), "holds no tensors");
  check_names(path.string(), tensors);
  leave_out_unfit(path.string(), tensors);
  return tensors;
}

void refuse_file(const std::string& where, const std::string& what) {
  throw InvalidArgument(fmt::format("{}: {}", where, what));
}

std::size_t count_of(const std::string& name, std::span<const std::size_t> shape,
                     const std::string& where) {
  std::size_t count = 1;
  for (const std::size_t size : shape)
    if (__builtin_mul_overflow(count, size, &count))
      refuse_file(where, fmt::format("tensor \"{}\" has more values than memory holds", name));
  return count;
}

std::string read_file(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) refuse_file(path.string(), "is a folder");
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) refuse_file(path.string(), strerror(errno));
  if (bytes.empty()) refuse_file(path.string(), "is empty");
  return bytes;
}

}  // namespace tersor::bench
