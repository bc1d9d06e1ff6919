#include "comm/collectives/host_copy.h"

#include "kernels/device/device.h"
#include "kernels/scalar/convert.h"

#include <algorithm>
#include <cstring>

namespace tersor {
namespace {

void convert(std::span<const float> floats, float factor, ValueSpan values) {
  visit_gradient_dtype(values.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto typed = values.as<T>();
    std::transform(floats.begin(), floats.end(), typed.begin(),
                   [&](float value) { return kernels::from_f32<T>(value * factor); });
  });
}

}  // namespace

HostCopy::HostCopy(ConstValueSpan values, StreamView stream) : values_(values) {
  if (values.memory() == Memory::kHost || values.empty()) return;
  memory_ = kernels::PinnedBuffer(values.bytes());
  kernels::copy_bytes(memory_.pointer(), values.pointer(), values.bytes(), stream);
  kernels::synchronize(stream);
  values_ = {memory_.pointer(), values.count(), values.dtype()};
}

Buffer zeroed_buffer(std::size_t bytes, Memory memory, StreamView stream) {
  Buffer buffer(bytes, memory);
  if (memory == Memory::kDevice)
    kernels::zero_bytes(buffer.pointer(), bytes, stream);
  else if (bytes != 0)
    std::memset(buffer.pointer(), 0, bytes);
  return buffer;
}

std::vector<float> to_floats(ConstValueSpan values, StreamView stream) {
  std::vector<float> floats(values.count());
  if (values.empty()) return floats;
  const HostCopy host(values, stream);
  visit_gradient_dtype(values.dtype(), [&](auto tag) {
    const auto typed = host.values().as<decltype(tag)>();
    std::transform(typed.begin(), typed.end(), floats.begin(),
                   [](auto value) { return kernels::to_f32(value); });
  });
  return floats;
}

void from_floats(std::span<const float> floats, float factor, ValueSpan values, StreamView stream) {
  if (values.empty()) return;
  if (values.memory() == Memory::kHost) return convert(floats, factor, values);
  const kernels::PinnedBuffer host(values.bytes());
  convert(floats, factor, {host.pointer(), values.count(), values.dtype()});
  kernels::copy_bytes(values.pointer(), host.pointer(), values.bytes(), stream);
  kernels::synchronize(stream);
}

}  // namespace tersor
