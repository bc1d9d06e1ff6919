#include "codecs/delta_tensors.h"

#include "codecs/apart.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

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

void check_overlap(std::span<const DeltaTensor> tensors, std::span<const ByteSpan> values) {
  CallMemory memory;
  for (std::size_t i = 0; i < values.size(); ++i)
    memory.write(tensors[i].name.c_str(), values[i].data(), values[i].size());
  if (const std::string overlap = memory.overlap(); !overlap.empty())
    throw InvalidArgumentError("delta: " + overlap + ", or pass shared weights once");
}

std::vector<MatchedTensor> match(std::span<const DeltaTensor> tensors,
                                 std::span<const ConstByteSpan> values, ConstByteSpan delta) {
  check_list(tensors, values);
  std::vector<DeltaView> views = read_delta(delta);
  std::unordered_map<std::string_view, std::size_t> indices;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!indices.emplace(tensors[i].name, i).second)
      throw InvalidArgumentError("delta: two tensors have the name \"" + tensors[i].name + "\"");
  std::vector<MatchedTensor> matched;
  for (DeltaView& view : views) {
    const DeltaTensor& own = view.tensor;
    const auto found = indices.find(own.name);
    if (found == indices.end())
      throw InvalidArgumentError(
          "delta: the delta belongs to another model: these weights have no " + quoted(own));
    const DeltaTensor& tensor = tensors[found->second];
    if (own.dtype != tensor.dtype || own.shape != tensor.shape)
      throw InvalidArgumentError("delta: the delta belongs to another model: " + quoted(own) +
                                 " is " + shape_text(own) + " in the delta, but " +
                                 shape_text(tensor) + " in these weights");
    matched.push_back({std::move(view), &tensor, values[found->second].data()});
    indices.erase(found);
  }
  for (const DeltaTensor& tensor : tensors)
    if (indices.contains(tensor.name))
      throw InvalidArgumentError("delta: the delta belongs to another model: the delta has no " +
                                 quoted(tensor));
  return matched;
}

void verify_sums(const DeltaView& view, std::optional<std::uint64_t> base_sum,
                 std::uint64_t change_sum, std::uint64_t changed, const char* fault) {
  const DeltaHead& head = view.head;
  if (base_sum && *base_sum != head.base_checksum)
    throw BaseMismatchError("delta: " + quoted(view.tensor) +
                            " is not the base of this delta: its checksum differs. Apply the "
                            "missing deltas first, or load a full copy");
  if (fault == nullptr && changed != head.changed) fault = "its counts do not add up";
  if (fault == nullptr &&
      kernels::add_checksums(head.base_checksum, change_sum) != head.result_checksum)
    fault = "the changes do not give the checksum of the result";
  if (fault != nullptr) throw WireError("delta: " + quoted(view.tensor) + ": " + fault);
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
