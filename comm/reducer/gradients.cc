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
  std::vector<float> expected(param.count, 0.0f);
  add_to(expected, gradient);
  add_to(expected, residual);
  const PlannedCodec planned = plan_without_feedback(
      param.codec->spec().text(),
      {.count = param.count, .parameter = parameter, .rows = param.rows, .columns = param.columns},
      static_cast<std::size_t>(context.ranks.count));
  if (!planned.has_frames() && context.call.reduction == Reduction::kMean)
    for (float& value : expected) value /= static_cast<float>(context.ranks.count);
  return measure_loss(planned, expected).relative_error();
}

}  // namespace

void Gradients::set_backend(MemoryBackend& backend) {
  backend_ = &backend;
  globally_unused_.resize(parameters_.params.size(), false);
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

void Gradients::check_spans(std::uint32_t parameter, const Spans& spans) const {
  const ExchangeParameter& param = parameters_.params[parameter];
  check_values(parameter, spans.gradient, param.count);
  if (scatters(param))
    check_values(parameter, spans.shard,
                 shard_range(param.count, 0, parameters_.context().ranks.count).count);
  else if (!spans.shard.empty())
    throw InvalidArgumentError("\"" + parameters_.all[parameter].name +
                               "\" is all-reduced: do not pass a shard");
}

void Gradients::check(std::uint32_t parameter, const std::optional<Spans>& spans) const {
  if (spans.has_value()) return check_spans(parameter, *spans);
  if (!has(parameter))
    throw InvalidArgumentError("\"" + parameters_.all[parameter].name +
                               "\" was added without a gradient: pass the gradient to ready()");
}

// A shard may use a separate range within the gradient.
void Gradients::claim_memory(const ReducerStep& step, std::uint32_t parameter,
                             const std::optional<Spans>& spans) {
  const Spans& memory = spans ? *spans : Spans{parameters_.all[parameter].gradient, {}};
  claim_memory(step, parameter, memory.gradient);
  const auto rank = static_cast<std::size_t>(parameters_.context().ranks.rank);
  if (memory.shard.pointer() != memory.gradient.pointer() + rank * memory.shard.bytes())
    claim_memory(step, parameter, memory.shard);
}

void Gradients::claim_memory(const ReducerStep& step, std::uint32_t parameter,
                             const ConstValueSpan& memory) {
  if (memory.empty()) return;
  auto at = std::ranges::upper_bound(in_use_, memory.pointer(), {},
                                     [](const InUse& one) { return one.memory.pointer(); });
  if (at != in_use_.begin() && encoding::overlap(std::prev(at)->memory, memory)) --at;
  while (at != in_use_.end() && encoding::overlap(at->memory, memory)) {
    const std::uint32_t other = at->parameter;
    if (step.is_done(other, step.number())) {
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
void Gradients::stage(std::uint32_t parameter, const std::optional<Spans>& spans,
                      Contribution contribution) {
  if (spans.has_value()) bind(parameter, *spans);
  if (contribution == Contribution::kGloballyUnused)
    mark_globally_unused(parameter);
  else if (!contributes(parameter, contribution))
    deactivate(parameter);
  else
    apply_weight(parameter);
  if (parameters_.options().measure_error == MeasureError::kOn) measure_error(parameter);
}

void Gradients::bind(std::uint32_t parameter, const Spans& spans) {
  const ExchangeParameter& param = parameters_.params[parameter];
  ParameterBinding& binding = parameters_.bindings[parameter];
  ReducerParameter& own = parameters_.all[parameter];
  own.gradient = spans.gradient;
  binding.input = spans.gradient;
  binding.output = scatters(param) ? spans.shard : spans.gradient;
  if (!parameters_.feedback[parameter].encoded_shards.empty()) binding.host_sum = spans.gradient;
  binding.window.reset();
  if (scatters(param) && own.algorithm == Algorithm::kOneShot)
    binding.window = binding.output_first;
}

void Gradients::apply_weight(std::uint32_t parameter) {
  if (any_inactive_) backend_->set_active(parameter, true);
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

void Gradients::deactivate(std::uint32_t parameter) {
  const ValueSpan& values = parameters_.all[parameter].gradient;
  backend_->set_active(parameter, false);
  backend_->clear({values.pointer(), values.bytes()}, backend_->trainer());
  any_inactive_ = true;
}

// Updates of an owner's residual and of the codec's memory go to scratch memory that no step
// reads. The exchange between hosts ignores inactive flags, so a host also sends such a residual.
void Gradients::mark_globally_unused(std::uint32_t parameter) {
  ParameterFeedback& feedback = parameters_.feedback[parameter];
  Residuals& residuals = parameters_.residuals;
  globally_unused_[parameter] = true;
  const bool hierarchical = parameters_.context().ranks.hierarchy != nullptr;
  const auto scratch = [&](Residuals::Kind kind) {
    const ValueSpan zeros = residuals.scratch(parameter, kind);
    return SegmentState{zeros, zeros};
  };
  if (hierarchical && !feedback.sender.residual_out.empty())
    feedback.sender = scratch(Residuals::kSender);
  if (!feedback.owner.residual_out.empty()) feedback.owner = scratch(Residuals::kOwner);
  if (ValueSpan& out = feedback.memory.out; !out.empty())
    out = residuals.scratch(parameter, Residuals::kMemory).subspan(0, out.count());
  deactivate(parameter);
}

void Gradients::measure_error(std::uint32_t parameter) {
  const ExchangeParameter& param = parameters_.params[parameter];
  const HostCopy gradient(parameters_.bindings[parameter].input, parameters_.options().stream);
  const HostCopy residual(parameters_.residuals.current_sender(parameter), backend_->stream());
  parameters_.all[parameter].relative_error =
      relative_error(param, parameter, parameters_.context(), gradient.values(), residual.values());
}

void Gradients::copy_to_shard(std::uint32_t parameter) {
  const ParameterBinding& binding = parameters_.bindings[parameter];
  if (scatters(parameters_.params[parameter])) backend_->copy(binding.input, binding.output);
}

// Flags are 1 between steps, because captured graphs expect flags of 1. The caller may free memory
// passed for this step only.
void Gradients::end_step() {
  for (std::size_t i = 0; i < parameters_.params.size(); ++i) {
    if (any_inactive_) backend_->set_active(i, true);
    if (!parameters_.all[i].per_step_gradient) continue;
    ParameterBinding& binding = parameters_.bindings[i];
    binding.input = {};
    binding.output = binding.host_sum = {};
  }
  any_inactive_ = false;
  in_use_.clear();
  globally_unused_.assign(parameters_.params.size(), false);
}

}  // namespace tersor
