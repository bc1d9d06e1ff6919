// Operations on residuals between steps: loss scales, and transactions that discard steps.
#include "comm/reducer/impl.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

namespace tersor {
namespace {

// Without names, of all parameters.
std::vector<std::size_t> indices_of(const Parameters& parameters,
                                    std::optional<std::span<const std::string>> names = {}) {
  std::vector<std::size_t> indices(names ? names->size() : parameters.count());
  for (std::size_t i = 0; i < indices.size(); ++i)
    indices[i] = names ? parameters.index_of((*names)[i]) : i;
  return indices;
}

}  // namespace

// A parameter added after the last step has no residual yet.
void GradientReducer::Impl::scale_residuals(float factor, std::span<const std::size_t> parameters) {
  if (!std::isfinite(factor))
    throw InvalidArgumentError("factor of scale_residuals() is " + std::to_string(factor) +
                               ": give a finite number");
  const auto lock = between_steps("scale_residuals()");
  if (backend_ == nullptr) return;
  for (const std::size_t one : parameters)
    if (one < parameters_.residuals.parameters()) parameters_.residuals.scale(one, factor);
}

void GradientReducer::scale_residuals(float factor) {
  OnDevice(*impl_)->scale_residuals(factor, indices_of(impl_->parameters_));
}

void GradientReducer::scale_residuals(float factor, std::span<const std::string> names) {
  OnDevice(*impl_)->scale_residuals(factor, indices_of(impl_->parameters_, names));
}

void GradientReducer::Impl::check_transactions(std::string_view call) const {
  if (options_.transactional == Transactional::kOn) return;
  throw InvalidArgumentError(std::string(call) + "() needs the option transactional");
}

// Returns false if no parameter has a step to discard. The step number falls only if every
// parameter discards the step.
bool GradientReducer::Impl::discard(std::span<const std::size_t> parameters) {
  const LockedStep step = stopped_between_steps("discard_step()");
  check_transactions("discard_step");
  Residuals& residuals = parameters_.residuals;
  // After an error the residuals from before the step are current, except in joined steps.
  if (step->failed() && !step->untouched() && !residuals.joins()) return true;
  const bool found = residuals.discard(parameters);
  const std::uint32_t steps = residuals.take_discarded();
  if (steps > 0) backend_->set_step(backend_->step() - steps);
  step_offset_ -= steps;
  if (found || steps > 0) totals_.record_discarded(std::max(steps, 1u));
  parameters_.bind();
  return found || steps > 0;
}

void GradientReducer::discard_step() {
  if (!OnDevice(*impl_)->discard(indices_of(impl_->parameters_)))
    throw InvalidArgumentError("there is no step to discard: a step can be discarded once");
}

void GradientReducer::discard_step(std::span<const std::string> names) {
  OnDevice(*impl_)->discard(indices_of(impl_->parameters_, names));
}

void GradientReducer::Impl::accept(std::span<const std::size_t> parameters) {
  const LockedStep step = stopped_between_steps("accept_steps()");
  check_transactions("accept_steps");
  if (options_.elastic == Elastic::kOn)
    throw InvalidArgumentError(
        "an elastic reducer does not support accept_steps(): it commits each step alone");
  parameters_.residuals.join();
  parameters_.residuals.accept(parameters);
  parameters_.bind();
}

void GradientReducer::accept_steps() { OnDevice(*impl_)->accept(indices_of(impl_->parameters_)); }

void GradientReducer::accept_steps(std::span<const std::string> names) {
  OnDevice(*impl_)->accept(indices_of(impl_->parameters_, names));
}

}  // namespace tersor
