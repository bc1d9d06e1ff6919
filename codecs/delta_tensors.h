// The caller's tensors and the tensors of a weight delta: checks, checksums and blocks.
#pragma once

#include "codecs/delta_frame.h"
#include "codecs/slices.h"
#include "kernels/delta/cpu.h"

#include <tersor/delta.h>
#include <tersor/error.h>
#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tersor::encoding {

/// Returns the name for a message.
std::string quoted(const DeltaTensor& tensor);
/// Returns the dtype and the shape for a message.
std::string shape_text(const DeltaTensor& tensor);

/// Throws InvalidArgumentError if the values have another size, or are not aligned.
void check_bytes(const DeltaTensor& tensor, const std::byte* bytes, std::size_t size);

template <typename Bytes>
void check_list(std::span<const DeltaTensor> tensors, std::span<const Bytes> values) {
  if (values.size() != tensors.size())
    throw InvalidArgumentError("delta: " + std::to_string(values.size()) + " spans for " +
                               std::to_string(tensors.size()) + " tensors");
  for (std::size_t i = 0; i < tensors.size(); ++i)
    check_bytes(tensors[i], values[i].data(), values[i].size());
}

/// Throws InvalidArgumentError if the weights of two tensors overlap.
void check_overlap(std::span<const DeltaTensor> tensors, std::span<const ByteSpan> values);

/// A tensor of a delta, and the caller's tensor with this name.
struct MatchedTensor {
  DeltaView view;
  const DeltaTensor* tensor;
  const std::byte* values;
};

/// Finds the caller's tensor of each tensor in the delta. Throws WireError for a damaged delta and
/// InvalidArgumentError for another model.
std::vector<MatchedTensor> match(std::span<const DeltaTensor> tensors,
                                 std::span<const ConstByteSpan> values, ConstByteSpan delta);

/// Compares the sums over a tensor's blocks with the head of the tensor. `base_sum` is the checksum
/// of the values, or nothing for a trusted base. `fault` describes a fault of a block, or is null.
/// Throws BaseMismatchError and WireError.
void verify_sums(const DeltaView& view, std::optional<std::uint64_t> base_sum,
                 std::uint64_t change_sum, std::uint64_t changed, const char* fault);

/// Returns block `index` of a tensor.
kernels::DeltaBlock block_at(const kernels::DeltaBlock& whole, std::size_t index);

/// Returns the part of a tensor's checksum that belongs to a block with these values.
std::uint64_t checksum_of(const kernels::DeltaBlock& block, const std::byte* values);

/// Scratch memory for the tasks of a call, which all tensors share.
class DeltaScratchPool {
 public:
  explicit DeltaScratchPool(Threads* threads)
      : scratches_(max_tasks(threads == nullptr ? 1 : threads->count())) {}

  kernels::DeltaScratch& of(std::size_t task) {
    if (!scratches_[task])
      scratches_[task] = std::make_unique_for_overwrite<kernels::DeltaScratch>();
    return *scratches_[task];
  }

 private:
  std::vector<std::unique_ptr<kernels::DeltaScratch>> scratches_;
};

}  // namespace tersor::encoding
