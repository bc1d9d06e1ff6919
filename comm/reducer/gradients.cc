// See gradients.h.
#include "comm/reducer/gradients.h"

#include "comm/collectives/bind.h"
#include "comm/collectives/host_copy.h"
#include "comm/reducer/measure.h"

#include <string>

namespace tersor {
namespace {

bool scatters(const Slot& slot) { return slot.collective == Collective::kReduceScatter; }

}  // namespace

void Gradients::place(Residence& residence) {
  residence_ = &residence;
  nowhere_.resize(slots_.size(), false);
}

void Gradients::check_values(std::uint32_t parameter, const ValueSpan& values,
                             std::size_t count) const {
  const Slot& slot = slots_[parameter];
  const Memory memory = residence_->memory();
  if (values.count() == count && values.dtype() == slot.dtype && values.memory() == memory) return;
  throw InvalidArgument(
      "\"" + parameters_[parameter].name + "\" was added with " + std::to_string(count) +
      " values of " + std::string(dtype_name(slot.dtype)) + " " + std::string(memory_text(memory)) +
      ", but " + std::to_string(values.count()) + " of " + std::string(dtype_name(values.dtype())) +
      " " + std::string(memory_text(values.memory())) + " are ready");
}

void Gradients::check_given(std::uint32_t parameter, const Given& given) const {
  const Slot& slot = slots_[parameter];
  check_values(parameter, given.gradient, slot.count);
  if (scatters(slot))
    check_values(parameter, given.shard, shard_range(slot.count, 0, context_.ranks).count);
  else if (!given.shard.empty())
    throw InvalidArgument("\"" + parameters_[parameter].name +
                          "\" is all-reduced: every rank gets all of it, and no shard");
}

void Gradients::check(std::uint32_t parameter, const std::optional<Given>& given) const {
  if (given.has_value()) return check_given(parameter, *given);
  if (!has(parameter))
    throw InvalidArgument("\"" + parameters_[parameter].name +
                          "\" was added without a gradient: give it to ready()");
}

// A call that failed later on may have left it out.
void Gradients::take(std::uint32_t parameter, const std::optional<Given>& given,
                     Contribution contribution) {
  if (given.has_value()) bind(parameter, *given);
  if (contribution == Contribution::kNowhere)
    leave_alone(parameter);
  else if (!contributes(parameter, contribution))
    leave_out(parameter);
  else if (left_out_)
    residence_->set_active(parameter, true);
  if (options_.measure_error == MeasureError::kOn) measure_error(parameter);
}

void Gradients::bind(std::uint32_t parameter, const Given& given) {
  Slot& slot = slots_[parameter];
  parameters_[parameter].gradient = given.gradient;
  slot.input = given.gradient;
  slot.output = scatters(slot) ? given.shard : given.gradient;
  if (!slot.encoded_shards.empty()) slot.host_sum = given.gradient;
}

bool Gradients::contributes(std::uint32_t parameter, Contribution contribution) const {
  if (contribution != Contribution::kGradientUnlessZero)
    return contribution == Contribution::kGradient;
  return !residence_->all_zero(slots_[parameter].input);
}

void Gradients::leave_out(std::uint32_t parameter) {
  const ValueSpan& values = parameters_[parameter].gradient;
  residence_->set_active(parameter, false);
  residence_->clear({values.pointer(), values.bytes()}, residence_->trainer());
  left_out_ = true;
}

// What this rank would pay as an owner, or learn of a sum, it does to memory that nobody reads.
void Gradients::leave_alone(std::uint32_t parameter) {
  Slot& slot = slots_[parameter];
  nowhere_[parameter] = true;
  if (!slot.owner.residual_out.empty()) slot.owner = residuals_.idle_owner(parameter);
  if (!slot.memory.out.empty()) slot.memory.out = residuals_.idle_memory(parameter);
  leave_out(parameter);
}

void Gradients::measure_error(std::uint32_t parameter) {
  const Slot& slot = slots_[parameter];
  const HostCopy gradient(slot.input, options_.stream);
  const HostCopy residual(residuals_.current_sender(parameter), residence_->stream());
  parameters_[parameter].relative_error = relative_error(
      *slot.codec,
      {.count = slot.count, .parameter = parameter, .rows = slot.rows, .columns = slot.columns},
      gradient.values(), residual.values());
}

void Gradients::keep_own(std::uint32_t parameter) {
  const Slot& slot = slots_[parameter];
  if (scatters(slot)) residence_->copy(slot.input, slot.output);
}

// Flags are 1 between steps, so that graphs of a step find them so. The caller may free what it
// gave for this step alone.
void Gradients::end_step() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (left_out_) residence_->set_active(i, true);
    if (!parameters_[i].given_anew) continue;
    slots_[i].input = {};
    slots_[i].output = {};
    slots_[i].host_sum = {};
  }
  left_out_ = false;
  nowhere_.assign(slots_.size(), false);
}

}  // namespace tersor
