// Applies weight deltas to weights in device memory.

#include "codecs/checks.h"
#include "codecs/delta_tensors.h"
#include "kernels/delta/device.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/host/arrays.h"

#include <tersor/align.h>
#include <tersor/buffer.h>
#include <tersor/delta.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tersor {
namespace {

using namespace encoding;
using kernels::ArrayAllocator;
using kernels::DeltaDeviceTensor;
using kernels::DeltaFault;
using kernels::DeltaSums;

constexpr std::size_t kArrayAlignment = 256;  // bytes of an array in device memory

/// Returns the changed values of coded blocks, or more.
std::uint64_t max_recorded(const DeltaView& view) {
  std::uint64_t values = 0;
  for (std::size_t i = 0; i < view.head.blocks; ++i)
    if (view.size(i) != 0 && view.size(i) != kDeltaPlain)
      values += view.plain_bytes(i) / delta_dtype_bytes(view.tensor.dtype);
  return std::min(values, view.head.changed);
}

const char* text_of(DeltaFault fault) {
  constexpr const char* kMessages[] = {nullptr,
                                       "its counts do not add up",
                                       "the head of a block is damaged",
                                       "the unary codes of a block are damaged",
                                       "a place is beyond its class",
                                       "the steps of a block are damaged"};
  return kMessages[static_cast<std::size_t>(fault)];
}

std::uint64_t sum_of(std::uint64_t low, std::uint64_t high) {
  return kernels::add_checksums(
      kernels::checksum_remainder(low),
      kernels::multiply_checksums(kernels::checksum_remainder(high), std::uint64_t{1} << 32));
}

}  // namespace

struct PreparedDeviceDelta::State {
  struct Part : DeltaDeviceTensor {
    std::size_t index;     // of the caller's tensor
    bool written = false;  // the records have old values
  };

  std::vector<DeltaTensor> tensors;
  Buffer delta, changes;  // on the device
  std::vector<Part> parts;

  void check(std::span<const ByteSpan> values, StreamView stream) const;
  void allocate_arrays(ArrayAllocator& arrays, const std::vector<MatchedTensor>& all);
  void decode(const std::vector<MatchedTensor>& all, StreamView stream);
};

void PreparedDeviceDelta::State::check(std::span<const ByteSpan> values, StreamView stream) const {
  kernels::check_stream(stream);
  check_list(std::span<const DeltaTensor>(tensors), values);
  for (const ByteSpan& span : values)
    if (!span.empty()) kernels::check_device_pointer(span.data());
}

void PreparedDeviceDelta::State::allocate_arrays(ArrayAllocator& arrays,
                                                 const std::vector<MatchedTensor>& all) {
  auto* const sums = arrays.take<DeltaSums>(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    DeltaDeviceTensor& part = parts[i];
    part.sums = sums + i;
    part.records = arrays.take<kernels::DeltaRecord>(all[i].view.head.blocks);
    part.record_values = arrays.take<std::byte>(part.max_recorded * delta_dtype_bytes(part.dtype));
    part.record_places = arrays.take<std::uint16_t>(part.max_recorded);
  }
}

void PreparedDeviceDelta::State::decode(const std::vector<MatchedTensor>& all, StreamView stream) {
  const std::size_t bytes = all.size() * sizeof(DeltaSums);
  if (all.empty()) return;
  kernels::zero_bytes(parts[0].sums, bytes, stream);
  if constexpr (kHasDeviceKernels)
    for (const DeltaDeviceTensor& part : parts) kernels::delta_device_decode(part, stream);
  const kernels::PinnedBuffer copied(bytes);
  kernels::copy_bytes(copied.pointer(), parts[0].sums, bytes, stream);
  kernels::synchronize(stream);
  for (std::size_t i = 0; i < all.size(); ++i) {
    DeltaSums sums;
    std::memcpy(&sums, copied.pointer() + i * sizeof sums, sizeof sums);
    std::optional<std::uint64_t> base;
    if (parts[i].reads_base) base = sum_of(sums.base_low, sums.base_high);
    verify_sums(all[i].view, base, sum_of(sums.change_low, sums.change_high), sums.changed,
                text_of(sums.fault));
  }
}

PreparedDeviceDelta::PreparedDeviceDelta(std::span<const DeltaTensor> tensors,
                                         std::span<const ConstByteSpan> base, ConstByteSpan delta,
                                         StreamView stream, const DeltaOptions& options)
    : state_(std::make_unique<State>()) {
  kernels::require_device();
  kernels::check_stream(stream);
  for (const ConstByteSpan& span : base)
    if (!span.empty()) kernels::check_device_pointer(span.data());
  State& state = *state_;
  state.tensors.assign(tensors.begin(), tensors.end());
  const std::vector<MatchedTensor> all = match(tensors, base, delta);
  state.delta = Buffer(align_up(delta.size(), kArrayAlignment), Memory::kDevice);
  const auto moved = [&](const std::byte* part) {
    return state.delta.pointer() + (part - delta.data());
  };
  for (const MatchedTensor& matched : all) {
    const DeltaView& view = matched.view;
    State::Part& part = state.parts.emplace_back();
    part.index = static_cast<std::size_t>(matched.tensor - tensors.data());
    part.dtype = view.tensor.dtype;
    part.classes = {view.head.classes, view.head.first_class};
    part.reads_base = options.base == DeltaBase::kCheck;
    part.count = view.count;
    part.values = const_cast<std::byte*>(matched.values);  // the decoder only reads
    part.sizes = reinterpret_cast<const std::uint16_t*>(moved(view.sizes));
    part.starts = reinterpret_cast<const std::uint64_t*>(moved(view.starts));
    part.blocks = reinterpret_cast<std::uint32_t*>(moved(view.blocks));
    part.max_recorded = max_recorded(view);
  }
  ArrayAllocator sizes(nullptr, kArrayAlignment);
  state.allocate_arrays(sizes, all);
  state.changes = Buffer(sizes.bytes(), Memory::kDevice);
  ArrayAllocator arrays(state.changes.pointer(), kArrayAlignment);
  state.allocate_arrays(arrays, all);
  kernels::copy_bytes(state.delta.pointer(), delta.data(), delta.size(), stream);
  state.decode(all, stream);
}

PreparedDeviceDelta::~PreparedDeviceDelta() = default;
PreparedDeviceDelta::PreparedDeviceDelta(PreparedDeviceDelta&&) noexcept = default;
PreparedDeviceDelta& PreparedDeviceDelta::operator=(PreparedDeviceDelta&&) noexcept = default;

void PreparedDeviceDelta::write(std::span<const ByteSpan> values, StreamView stream) {
  state_->check(values, stream);
  check_overlap(state_->tensors, values);
  if (!state_->parts.empty() && state_->parts.front().written)
    throw InvalidArgumentError("delta: the prepared delta was written before");
  for (State::Part& part : state_->parts) {
    part.values = values[part.index].data();
    if constexpr (kHasDeviceKernels) kernels::delta_device_write(part, false, stream);
    part.written = true;
  }
  kernels::synchronize(stream);
}

void PreparedDeviceDelta::undo(std::span<const ByteSpan> values, StreamView stream) {
  state_->check(values, stream);
  for (State::Part& part : state_->parts) {
    part.values = values[part.index].data();
    if constexpr (kHasDeviceKernels)
      if (part.written) kernels::delta_device_write(part, true, stream);
  }
  kernels::synchronize(stream);
}

std::size_t PreparedDeviceDelta::bytes() const {
  return state_->delta.bytes() + state_->changes.bytes();
}

}  // namespace tersor
