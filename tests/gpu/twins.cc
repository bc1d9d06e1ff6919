// See twins.h.

#include "tests/gpu/twins.h"

#include "tests/gpu/device_memory.h"

#include <algorithm>

namespace tersor::test {

void TwinBytes::upload() {
  const ConstByteSpan host = host_.span();
  if (host.empty()) return;
  test::upload(device_.pointer() + shift_, host);
}

std::vector<std::byte> TwinBytes::bytes(Memory memory) const {
  const ConstByteSpan host = host_.span();
  std::vector<std::byte> copy(host.begin(), host.end());
  if (memory == Memory::kDevice && !copy.empty())
    check_cuda(
        cudaMemcpy(copy.data(), device_.pointer() + shift_, copy.size(), cudaMemcpyDeviceToHost));
  return copy;
}

void TwinValues::set(const std::vector<float>& values) {
  const GuardedValues rounded(values, dtype_, 0, Memory::kHost);
  std::ranges::copy(rounded.bytes(), bytes_.span(Memory::kHost).begin());
  bytes_.upload();
}

std::vector<float> TwinValues::floats(Memory memory) const {
  GuardedValues copy(count_, dtype_, 0, Memory::kHost);
  std::ranges::copy(bytes_.bytes(memory), copy.span().pointer());
  return copy.floats();
}

}  // namespace tersor::test
