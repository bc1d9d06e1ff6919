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
  if (path.extension() == ".npz") return read_npz(path);
  if (path.extension() == ".npy")
    return {parse_npy(path.filename().string(), read_file(path), path.string())};
  return parse_safetensors(read_file(path), path.string());
}

void check(const std::string& where, const Tensor& tensor, std::set<std::string>& names) {
  const auto fail = [&](const char* what) {
    refuse_file(where, fmt::format("tensor \"{}\" {}", tensor.name, what));
  };
  if (!names.insert(tensor.name).second) fail("stands there twice");
  if (tensor.values.empty()) fail("has no values");
  if (!std::ranges::all_of(tensor.values, [](float value) { return std::isfinite(value); }))
    fail("holds values that are not finite in f32");
}

}  // namespace

std::size_t Tensor::columns() const {
  if (shape.size() < 2) return 0;
  return std::accumulate(shape.begin() + 1, shape.end(), std::size_t{1}, std::multiplies{});
}

bool is_tensor_file(const std::string& name) {
  return name.ends_with(".npy") || name.ends_with(".npz") || name.ends_with(".safetensors");
}

std::vector<Tensor> read_tensors(const std::filesystem::path& path) {
  std::vector<Tensor> tensors = read_by_extension(path);
  if (tensors.empty()) refuse_file(path.string(), "holds no tensors");
  std::set<std::string> names;
  for (const Tensor& tensor : tensors) check(path.string(), tensor, names);
  return tensors;
}

void refuse_file(const std::string& where, const std::string& what) {
  throw InvalidArgument(fmt::format("{}: {}", where, what));
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file) refuse_file(path.string(), strerror(errno));
  if (bytes.empty()) refuse_file(path.string(), "is empty");
  return bytes;
}

}  // namespace tersor::bench
