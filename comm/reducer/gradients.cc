#include "comm/reducer/gradients.h"

#include "codecs/apart.h"
#include "codecs/loss.h"
#include "comm/collectives/bind.h"
#include "comm/collectives/host_copy.h"
#include "kernels/scalar/convert.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace tersor {
namespace {

bool scatters(const ExchangeParameter& param) {
  return param.collective == Collective::kReduceScatter;
}

void add_to(std::vector<float>& sum, ConstValueSpan values) {
  if (values.empty()) return;
  visit_gradient_dtype(values.dtype(), [&](auto tag) {
    const auto typed = values.as<decltype(tag)>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += kernels::to_f32(typed[i]);
  });
}

/// Returns |p − decoded| / |p| for one encode of p = gradient + residual (residual may be empty),
/// or 0 if p is all zeros. Changes no state. This is slow and meant for studies. A mean first
/// divides raw values by the number of ranks. All ranks share the scales and levels of raw values.
double relative_error(const ExchangeParameter& param, std::uint32_t parameter,
                      const ExchangeContext& context, ConstValueSpan gradient,
                      ConstValueSpan residual) {
  std::vector<float> wanted(param.count, 0.0f);
  add_to(wanted, gradient);
  add_to(wanted, residual);
  const PlannedCodec alone = plan_alone(
      param.codec->spec().text(),
      {.count = param.count, .parameter = parameter, .rows = param.rows, .columns = param.columns},
      static_cast<std::size_t>(context.ranks.count));
  if (!alone.has_frames() && context.call.reduction == Reduction::kMean)
    for (float& value : wanted) value /= static_cast<float>(context.ranks.count);
  return measure_loss(alone, wanted).relative_error();
}

}  // namespace

void Gradients::use_memory(MemoryBackend& backend) {
  backend_ = &backend;
  nowhere_.resize(parameters_.params.size(), false);
}

void Gradients::check_values(std::uint32_t parameter, const ValueSpan& values,
                             std::size_t count) const {
  const ExchangeParameter& param = parameters_.params[parameter];
  const Memory memory = backend_->memory();
  if (values.count() == count && values.dtype() == param.dtype && values.memory() == memory) return;
  throw InvalidArgumentError(
      "\"" + parameters_.all[parameter].name + "\" was added with " + std::to_string(count) +
      " values of " + std::string(dtype_name(param.dtype)) + " " +
      std::string(memory_text(memory)) + ", but the gradient has " +
      std::to_string(values.count()) + " values of " + std::string(dtype_name(values.dtype())) +
      " " + std::string(memory_text(values.memory())));
}

void Gradients::check_given(std::uint32_t parameter, const Given& given) const {
  const ExchangeParameter& param = parameters_.params[parameter];
  check_values(parameter, given.gradient, param.count);
  if (scatters(param))
    check_values(parameter, given.shard,
                 shard_range(param.count, 0, parameters_.context().ranks.count).count);
  else if (!given.shard.empty())
    throw InvalidArgumentError("\"" + parameters_.all[parameter].name +
                               "\" is all-reduced: do not pass a shard");
}

void Gradients::check(std::uint32_t parameter, const std::optional<Given>& given) const {
  if (given.has_value()) return check_given(parameter, *given);
  if (!has(parameter))
    throw InvalidArgumentError("\"" + parameters_.all[parameter].name +
                               "\" was added without a gradient: pass the gradient to ready()");
}

// A shard may use its own range within the gradient.
void Gradients::take_memory(const ReducerStep& step, std::uint32_t parameter,
                            const std::optional<Given>& given) {
  const Given& memory = given ? *given : Given{parameters_.all[parameter].gradient, {}};
  take_memory(step, parameter, memory.gradient);
  const auto rank = static_cast<std::size_t>(parameters_.context().ranks.rank);
  if (memory.shard.pointer() != memory.gradient.pointer() + rank * memory.shard.bytes())
    take_memory(step, parameter, memory.shard);
}

void Gradients::take_memory(const ReducerStep& step, std::uint32_t parameter,
                            const ConstValueSpan& memory) {
  if (memory.empty()) return;
  auto at = std::ranges::upper_bound(in_use_, memory.pointer(), {},
                                     [](const InUse& one) { return one.memory.pointer(); });
  if (at != in_use_.begin() && encoding::overlap(std::prev(at)->memory, memory)) --at;
  while (at != in_use_.end() && encoding::overlap(at->memory, memory)) {
    const std::uint32_t other = at->parameter;
    if (step.is_back(other, step.number())) {
      at = in_use_.erase(at);
      continue;
    }
    std::erase_if(in_use_, [&](const InUse& one) { return !step.is_ready(one.parameter); });
    throw InvalidArgumentError("the memory of \"" + parameters_.all[parameter].name +
                               "\" overlaps that of \"" + parameters_.all[other].name +
                               "\" in one step: give each gradient and shard memory of its own");
  }
  in_use_.insert(at, {memory, parameter});
}

// An earlier call that failed may have left the parameter inactive.
void Gradients::take(std::uint32_t parameter, const std::optional<Given>& given,
                     Contribution contribution) {
  if (given.has_value()) bind(parameter, *given);
  if (contribution == Contribution::kGloballyUnused)
    leave_alone(parameter);
  else if (!contributes(parameter, contribution))
    leave_out(parameter);
  else
    weigh(parameter);
  if (parameters_.options().measure_error == MeasureError::kOn) measure_error(parameter);
}

void Gradients::bind(std::uint32_t parameter, const Given& given) {
  const ExchangeParameter& param = parameters_.params[parameter];
  ParameterBinding& binding = parameters_.bindings[parameter];
  ReducerParameter& own = parameters_.all[parameter];
  own.gradient = given.gradient;
  binding.input = given.gradient;
  binding.output = scatters(param) ? given.shard : given.gradient;
  if (!parameters_.feedback[parameter].encoded_shards.empty()) binding.host_sum = given.gradient;
  binding.window.reset();
  if (scatters(param) && own.algorithm == Algorithm::kOneShot)
    binding.window = binding.output_first;
}

void Gradients::weigh(std::uint32_t parameter) {
  if (left_out_) backend_->set_active(parameter, true);
  if (weights_.factor() == 1) return;
  const ValueSpan& gradient = parameters_.all[parameter].gradient;
  backend_->scale(gradient, weights_.factor(), backend_->trainer());
}

// A gradient of 0 samples may hold any values, including NaN.
bool Gradients::contributes(std::uint32_t parameter, Contribution contribution) const {
  if (weights_.factor() == 0) return false;
  if (contribution != Contribution::kGradientUnlessZero)
    return contribution == Contribution::kGradient;
  return !backend_->all_zero(parameters_.bindings[parameter].input);
}

void Gradients::leave_out(std::uint32_t parameter) {
  const ValueSpan& values = parameters_.all[parameter].gradient;
  backend_->set_active(parameter, false);
  backend_->clear({values.pointer(), values.bytes()}, backend_->trainer());
  left_out_ = true;
}

// Updates of an owner's residual and of the codec's memory go to idle memory that no step reads.
// The exchange between hosts ignores inactive flags, so a host also sends an idle residual.
void Gradients::leave_alone(std::uint32_t parameter) {
  ParameterFeedback& feedback = parameters_.feedback[parameter];
  Residuals& residuals = parameters_.residuals;
  nowhere_[parameter] = true;
  const bool hierarchical = parameters_.context().ranks.hierarchy != nullptr;
  if (hierarchical && !feedback.sender.residual_out.empty())
    feedback.sender = residuals.idle_sender(parameter);
  if (!feedback.owner.residual_out.empty()) feedback.owner = residuals.idle_owner(parameter);
  if (!feedback.memory.out.empty())
    feedback.memory.out = residuals.idle_memory(parameter, feedback.memory.out.count());
  leave_out(parameter);
}

void Gradients::measure_error(std::uint32_t parameter) {
  const ExchangeParameter& param = parameters_.params[parameter];
  const HostCopy gradient(parameters_.bindings[parameter].input, parameters_.options().stream);
  const HostCopy residual(parameters_.residuals.current_sender(parameter), backend_->stream());
  parameters_.all[parameter].relative_error =
      relative_error(param, parameter, parameters_.context(), gradient.values(), residual.values());
}

void Gradients::keep_own(std::uint32_t parameter) {
  const ParameterBinding& binding = parameters_.bindings[parameter];
  if (scatters(parameters_.params[parameter])) backend_->copy(binding.input, binding.output);
}

// Flags are 1 between steps, because captured graphs expect flags of 1. The caller may free memory
// passed for this step only.
void Gradients::end_step() {
  for (std::size_t i = 0; i < parameters_.params.size(); ++i) {
    if (left_out_) backend_->set_active(i, true);
    if (!parameters_.all[i].given_anew) continue;
    ParameterBinding& binding = parameters_.bindings[i];
    binding.input = {};
    binding.output = binding.host_sum = {};
  }
  left_out_ = false;
  in_use_.clear();
  nowhere_.assign(parameters_.params.size(), false);
}

}  // namespace tersor
