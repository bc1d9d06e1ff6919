// Tensors for measurements, from NumPy and safetensors files.
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
  std::vector<std::size_t> shape = {};  ///< empty for a single value or an unknown shape
  /// reason why measurements cannot use the tensor; empty for a usable tensor
  std::string defect = {};

  /// Rows and columns as in GradientReducer::add; further dimensions count as columns.
  std::size_t rows() const { return shape.empty() ? values.size() : shape.front(); }
  std::size_t columns() const;
};

/// True if the name ends in .npy or .safetensors.
bool is_tensor_file(const std::string& name);

/// Returns the usable tensors of a file. A .npy file has one tensor, named like the file. The
/// tensors of a .safetensors file keep the order of their bytes. A tensor is left out and reported
/// on standard error if its type is unsupported, if the tensor is empty, or if a value is not
/// finite. Throws InvalidArgumentError if no tensor is left, if the file cannot be read, if sizes
/// disagree, or if a name occurs twice.
std::vector<Tensor> read_tensors(const std::filesystem::path& path);

/// Writes f32 tensors to a .safetensors file. Throws Error if the file cannot be written.
void write_safetensors(const std::filesystem::path& path, std::span<const Tensor> tensors);

// The readers for `read_tensors`. `read_tensors` adds the file name to their errors.

/// Reads a .npy file. Format: NumPy Enhancement Proposal 1, versions 1 to 3.
Tensor parse_npy(const std::string& name, std::string_view bytes);
/// Format: huggingface.co/docs/safetensors.
std::vector<Tensor> parse_safetensors(std::string_view bytes);

/// Makes a tensor of `bytes`. `type` is "<f2", "<f4" or "<f8" of .npy, or "F16", "BF16" or "F32" of
/// .safetensors. Another type is a defect. Throws InvalidArgumentError if the shape does not match
/// the number of bytes.
Tensor make_tensor(const std::string& name, std::string_view type, std::vector<std::size_t> shape,
                   std::string_view bytes);

}  // namespace tersor::bench
