#include "codecs/delta_tensors.h"

#include "codecs/delta_frame.h"

#include <algorithm>

namespace tersor {

std::string_view delta_dtype_name(DeltaDtype dtype) {
  constexpr std::string_view kNames[] = {"f32",  "bf16", "f16", "f64", "e4m3",
                                         "e5m2", "i8",   "i16", "i32", "i64"};
  return kNames[static_cast<std::size_t>(dtype)];
}

namespace encoding {
std::string quoted(const DeltaTensor& tensor) { return "tensor \"" + tensor.name + "\""; }

std::string shape_text(const DeltaTensor& tensor) {
  std::string text = std::string(delta_dtype_name(tensor.dtype)) + " (";
  for (const std::uint64_t& dimension : tensor.shape)
    text += (&dimension == tensor.shape.data() ? "" : ", ") + std::to_string(dimension);
  return text + ")";
}

void check_bytes(const DeltaTensor& tensor, const std::byte* bytes, std::size_t size) {
  const unsigned width = delta_dtype_bytes(tensor.dtype);
  const auto count = delta_count_of(tensor);
  if (!count || *count * width != size)
    throw InvalidArgumentError("delta: " + quoted(tensor) + " is " + shape_text(tensor) +
                               ", but its values have " + std::to_string(size) + " bytes");
  if (reinterpret_cast<std::uintptr_t>(bytes) % width != 0)
    throw InvalidArgumentError("delta: the values of " + quoted(tensor) +
                               " are not aligned to their type");
}

kernels::DeltaBlock block_at(const kernels::DeltaBlock& whole, std::size_t index) {
  kernels::DeltaBlock block = whole;
  block.first = index * kDeltaBlock;
  block.count = std::min<std::size_t>(kDeltaBlock, whole.count - block.first);
  block.base += block.first * delta_dtype_bytes(whole.dtype);
  return block;
}

std::uint64_t checksum_of(const kernels::DeltaBlock& block, const std::byte* values) {
  const std::size_t width = delta_dtype_bytes(block.dtype);
  return kernels::delta_checksum(values, block.count * width, block.first * width);
}

}  // namespace encoding
}  // namespace tersor
