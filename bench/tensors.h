// Tensors of values to measure with, from the files of NumPy and of safetensors.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::bench {

struct Tensor {
  std::string name;
  std::vector<float> values;
  std::vector<std::size_t> shape = {};  ///< empty: one value, or not known
  std::string unfit = {};               ///< why it cannot be measured with; empty where it can

  /// As GradientReducer::add takes them; further dimensions count as columns.
  std::size_t rows() const { return shape.empty() ? values.size() : shape.front(); }
  std::size_t columns() const;
};

/// Whether a name ends as the files that are read do: .npy or .safetensors.
bool is_tensor_file(const std::string& name);

/// The tensors of a file that can be measured with: that of a .npy, named like the file; those of a
/// .safetensors in the order in which they lie there. A tensor of another type than the
/// file's reader takes, an empty one, and one that holds a value that is not finite are left out,
/// and named on standard error. Throws InvalidArgument where none is left, the file cannot be read,
/// its sizes do not fit each other, or a name stands there twice.
std::vector<Tensor> read_tensors(const std::filesystem::path& path);

/// As f32, to a .safetensors file. Throws Error where it cannot be written.
void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors);

// The readers of `read_tensors`, which names the file in their errors.

/// A .npy file. Format: NumPy Enhancement Proposal 1, versions 1 to 3.
Tensor parse_npy(const std::string& name, std::string_view bytes);
/// Format: huggingface.co/docs/safetensors.
std::vector<Tensor> parse_safetensors(std::string_view bytes);

/// The tensor that `bytes` hold. `type` is "<f2", "<f4" or "<f8" of .npy, or "F16", "BF16" or "F32"
/// of .safetensors; a tensor of another type is unfit. Throws InvalidArgument if the shape has
/// another number of bytes.
Tensor make_tensor(const std::string& name, std::string_view type, std::vector<std::size_t> shape,
                   std::string_view bytes);

}  // namespace tersor::bench
