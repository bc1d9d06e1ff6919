// See operation.h.

#include "bench/device/operation.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>

#include "bench/compare.h"
#include "bench/rotation.h"

namespace tersor::bench {

PlanFor DeviceInput::plan_on_host(std::size_t contributions) const {
  PlanFor plan_for = host.plan_for();
  plan_for.contributions = contributions;
  return plan_for;
}

PlanFor DeviceInput::plan_on_device(std::size_t contributions) const {
  PlanFor plan_for = plan_on_host(contributions);
  plan_for.threads = nullptr;
  plan_for.memory = Memory::kDevice;
  plan_for.stream = stream;
  return plan_for;
}

std::size_t DeviceOperation::sets() const {
  return rotation_sets(input_.gpu.cache_bytes, useful_bytes_);
}

std::vector<TimedCall> DeviceOperation::memory_references(WithMemset with_memset) const {
  return memory_baselines(input_.gpu, input_.stream, useful_bytes_, with_memset);
}

DeviceGradients::DeviceGradients(const DeviceInput& input, std::size_t sets)
    : count_(input.host.count),
      dtype_(input.host.gradient.dtype()),
      sets_(sets, input.host.gradient.bytes()) {
  sets_.fill({input.host.gradient.pointer(), input.host.gradient.bytes()}, input.stream);
}

ConstValueSpan DeviceGradients::at(std::size_t call) const {
  return step_of(sets_.values(call, dtype_), count_, call);
}

void require_same(ConstByteSpan host, ConstByteSpan device, StreamView stream,
                  std::string_view what) {
  const Buffer copy = on_host(device.first(std::min(host.size(), device.size())), stream);
  if (same_bits(host, copy.span())) return;
  const auto first = std::ranges::mismatch(host, copy.span()).in1;
  throw Error(fmt::format("{}: what the device wrote differs from the CPU's at byte {} of {}", what,
                          first - host.begin(), host.size()));
}

}  // namespace tersor::bench
