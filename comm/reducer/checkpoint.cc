// Checkpoints of the residuals, and what is done to them between steps.
#include "comm/reducer/impl.h"
#include "kernels/common/convert.h"

#include <algorithm>

namespace tersor {
namespace {

std::vector<float> to_floats(ConstValueSpan values) {
  std::vector<float> floats(values.count());
  if (values.empty()) return floats;
  visit_gradient_dtype(values.dtype(), [&](auto tag) {
    const auto typed = values.as<decltype(tag)>();
    std::transform(typed.begin(), typed.end(), floats.begin(),
                   [](auto value) { return kernels::to_f32(value); });
  });
  return floats;
}

void from_floats(const std::vector<float>& floats, float factor, ValueSpan values) {
  if (values.empty()) return;
  visit_gradient_dtype(values.dtype(), [&](auto tag) {
    using T = decltype(tag);
    const auto typed = values.as<T>();
    std::transform(floats.begin(), floats.end(), typed.begin(),
                   [&](float value) { return kernels::from_f32<T>(value * factor); });
  });
}

void check_count(std::string_view name, std::string_view what, std::size_t found,
                 std::size_t wanted) {
  if (found == wanted) return;
  throw InvalidArgument("the state's " + std::string(what) + " of \"" + std::string(name) +
                        "\" has " + std::to_string(found) + " values, this reducer's " +
                        std::to_string(wanted));
}

// What a residual must be multiplied by so that its contribution to the result stays the same: a
// sum over `new_ranks` equal shares of it must be what `state.ranks` ranks would have added.
float portable_factor(const ReducerState& state, Reduction reduction, int new_ranks) {
  const auto ranks = reduction == Reduction::kMean ? static_cast<float>(state.ranks)
                                                   : static_cast<float>(new_ranks);
  return 1.0f / ranks;
}

}  // namespace

ReducerState GradientReducer::Impl::exact_state() {
  finish_steps();
  const std::lock_guard lock(mutex_);
  finalize();
  ReducerState state{.form = ReducerState::Form::kExact,
                     .reduction = options_.reduction,
                     .ranks = static_cast<std::uint32_t>(context_.ranks),
                     .rank = static_cast<std::uint32_t>(context_.rank),
                     .step = words_.step,
                     .order = order_known_ ? order_ : std::vector<std::uint32_t>{},
                     .parameters = {}};
  for (std::size_t i = 0; i < slots_.size(); ++i)
    state.parameters.push_back({parameters_[i].name, slots_[i].count,
                                to_floats(residuals_.current_sender(i)),
                                to_floats(residuals_.current_owner(i))});
  return state;
}

// The sum over ranks of all senders' and owners' residuals: what would still be added some day.
ReducerState GradientReducer::Impl::portable_state() {
  ReducerState state = exact_state();
  state.form = ReducerState::Form::kPortable;
  std::vector<float> all;
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    ReducerState::Parameter& parameter = state.parameters[i];
    for (std::size_t j = 0; j < parameter.owner.size(); ++j)
      parameter.residual[slots_[i].owner_first + j] += parameter.owner[j];
    parameter.owner.clear();
    all.insert(all.end(), parameter.residual.begin(), parameter.residual.end());
  }
  std::vector<ValueSpan> parts;
  for (int part = 0; part < context_.ranks; ++part) {
    const Range range = part_range(all.size(), part, context_.ranks);
    parts.push_back(ValueSpan(all).subspan(range.first, range.count));
  }
  control_
      ->sum({.name = "gradient reducer (portable state)",
             .signature = context_.signature,
             .tag = control_->reserve_tags(1),
             .timeout = options_.timeout},
            parts)
      .wait_synchronize();
  auto next = all.begin();
  for (ReducerState::Parameter& parameter : state.parameters)
    for (float& value : parameter.residual) value = *next++;
  return state;
}

void GradientReducer::Impl::check_state(const ReducerState& state) const {
  if (state.parameters.size() != slots_.size())
    throw InvalidArgument("the state holds " + std::to_string(state.parameters.size()) +
                          " parameters, this reducer " + std::to_string(slots_.size()));
  if (state.reduction != options_.reduction)
    throw InvalidArgument("the state belongs to the other reduction (sum or mean)");
  const bool exact = state.form == ReducerState::Form::kExact;
  if (exact && (static_cast<int>(state.ranks) != context_.ranks ||
                static_cast<int>(state.rank) != context_.rank))
    throw InvalidArgument("the state is rank " + std::to_string(state.rank) + " of " +
                          std::to_string(state.ranks) + "'s own, this is rank " +
                          std::to_string(context_.rank) + " of " + std::to_string(context_.ranks) +
                          "; for another number of ranks use save_portable_state()");
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const ReducerState::Parameter& parameter = state.parameters[i];
    if (parameter.name != parameters_[i].name || parameter.count != slots_[i].count)
      throw InvalidArgument("the state's parameter " + std::to_string(i) + " is \"" +
                            parameter.name + "\" with " + std::to_string(parameter.count) +
                            " values, this reducer's is \"" + parameters_[i].name + "\" with " +
                            std::to_string(slots_[i].count));
    check_count(parameter.name, "residual", parameter.residual.size(),
                residuals_.current_sender(i).count());
    if (exact)
      check_count(parameter.name, "owner's residual", parameter.owner.size(),
                  residuals_.current_owner(i).count());
  }
}

void GradientReducer::Impl::load(const ReducerState& state) {
  finish_steps();
  const std::lock_guard lock(mutex_);
  finalize();
  check_state(state);
  residuals_.clear();
  const bool exact = state.form == ReducerState::Form::kExact;
  const float factor = exact ? 1.0f : portable_factor(state, options_.reduction, context_.ranks);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    from_floats(state.parameters[i].residual, factor, residuals_.current_sender(i));
    if (exact) from_floats(state.parameters[i].owner, 1.0f, residuals_.current_owner(i));
  }
  words_.step = state.step;
  if (exact && !state.order.empty()) adopt_order(state.order);
}

void GradientReducer::Impl::discard_step() {
  try {
    finish_steps();
  } catch (const Error&) {
    return;  // the step never became current: the residuals from before it stand
  }
  const std::lock_guard lock(mutex_);
  if (options_.transactions != Transactions::kOn)
    throw InvalidArgument("discard_step() needs ReducerOptions::transactions = kOn");
  if (!residuals_.discard())
    throw InvalidArgument("there is no step to discard: each can be discarded once");
  words_.step -= 1;
  totals_.discarded += 1;
  bind_residuals();
}

void GradientReducer::Impl::scale_residuals(float factor) {
  finish_steps();
  const std::lock_guard lock(mutex_);
  residuals_.scale(factor);
}

}  // namespace tersor
