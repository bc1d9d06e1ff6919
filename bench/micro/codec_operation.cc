
#include "bench/micro/codec_operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "bench/common/compare.h"

namespace tersor::bench {
namespace {

constexpr std::uint64_t kResidualSeed = 2;

/// The `count` values of a longer gradient for call number `index`.
ConstValueSpan values_of_step(ConstValueSpan gradient, std::size_t count, std::size_t index) {
  constexpr std::size_t kStride = 512;  // values; keeps the alignment
  const std::size_t positions = (gradient.count() - count) / kStride + 1;
  return gradient.subspan(rotated_index(index * 2654435761u, positions) * kStride, count);
}

ConstByteSpan bytes_of(ConstValueSpan values) { return {values.pointer(), values.bytes()}; }

Buffer copy_of(ConstByteSpan bytes) {
  Buffer copy(bytes.size());
  std::memcpy(copy.pointer(), bytes.data(), bytes.size());
  return copy;
}

Buffer first_residual(const OperationInput& input) {
  if (input.machine->on_device())
    return sample_buffer(*input.source, input.count, Dtype::kF32, kResidualSeed);
  Buffer zeros(input.count * sizeof(float));
  std::memset(zeros.pointer(), 0, zeros.bytes());
  return zeros;
}

}  // namespace

ConstValueSpan OperationInput::step(std::size_t index) const {
  return values_of_step(gradient, count, index);
}

PlanInput OperationInput::plan_on_host(std::size_t contributions) const {
  return {.count = count,
          .dtype = gradient.dtype(),
          .checksum = checksum,
          .threads = threads,
          .contributions = contributions};
}

PlanInput OperationInput::plan_on_machine(std::size_t contributions) const {
  PlanInput plan_input = plan_on_host(contributions);
  if (!machine->on_device()) return plan_input;
  plan_input.threads = nullptr;
  plan_input.memory = Memory::kDevice;
  plan_input.stream = machine->traits().stream;
  return plan_input;
}

Buffer CodecOperation::copy_of_gradient() const { return copy_of(bytes_of(gradient())); }

Buffer CodecOperation::decoded(const PlannedCodec& on_host, const Buffer& frame) const {
  Buffer values(gradient().bytes());
  on_host.decode(used_bytes(frame), as_gradient(values));
  return values;
}

void CodecOperation::require_same(ConstByteSpan expected, const Buffer& actual,
                                  std::string_view what) {
  const ConstByteSpan same_length = actual.span().first(std::min(expected.size(), actual.bytes()));
  if (same_bits(expected, same_length)) return;
  const auto first = std::ranges::mismatch(expected, same_length).in1;
  throw Error(fmt::format("{}: what the device wrote differs from the CPU's at byte {} of {}", what,
                          first - expected.begin(), expected.size()));
}

Gradients::Gradients(const OperationInput& input, std::size_t sets, Steps steps)
    : count_(input.count) {
  if (!input.machine->on_device()) {
    sets_ = {steps == Steps::kAll ? input.gradient : input.step(0)};
    return;
  }
  copies_.emplace(sets, bytes_of(input.gradient), *input.machine);
  for (std::size_t set = 0; set < sets; ++set)
    sets_.push_back(copies_->values(set, input.gradient.count(), input.gradient.dtype()));
}

ConstValueSpan Gradients::at(std::size_t call) const {
  return values_of_step(sets_[rotated_index(call, sets_.size())], count_, call);
}

ValueSpan HostState::values() const {
  return residual.values(residual.bytes() / sizeof(float), Dtype::kF32);
}

ResidualStates::ResidualStates(const OperationInput& input, std::size_t sets)
    : count_(input.count),
      starts_at_zero_(!input.machine->on_device()),
      initial_(first_residual(input)),
      residuals_(sets, initial_.span(), *input.machine),
      words_(sizeof(StateWords), input.machine->traits().memory) {
  const StateWords words;
  input.machine->copy(std::as_bytes(std::span(&words, 1)), words_.span());
}

HostState ResidualStates::on_host() const { return {copy_of(initial_.span())}; }

double feedback_error(ConstValueSpan gradient, ConstValueSpan residual, ConstValueSpan decoded) {
  std::vector<double> sent(gradient.count());
  add_values(1.0, gradient, sent);
  add_values(1.0, residual, sent);
  return relative_error(sent, decoded);
}

}  // namespace tersor::bench
