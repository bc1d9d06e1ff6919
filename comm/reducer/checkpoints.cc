// Checkpoints: saving and loading residuals between steps.
#include "comm/collectives/fold.h"
#include "comm/collectives/host_copy.h"
#include "comm/reducer/impl.h"
#include "comm/reducer/loading.h"

#include <algorithm>

namespace tersor {
namespace {

/// True on the first rank that encodes the parameter. Other ranks may never have received the
/// codec's memory.
bool has_codec_memory(const ExchangeContext& context, const ExchangeParameter& param) {
  if (param.count == 0) return context.ranks.rank == 0;
  int rank = 0;
  while (state_ranges(context.ranks, param, rank).encoded.count == 0) ++rank;
  return rank == context.ranks.rank;
}

ReducerState::Parameter exact_parameter(const Parameters& parameters, std::size_t i,
                                        const CodecPolicy& policy, StreamView stream) {
  const ExchangeParameter& param = parameters.params[i];
  const ReducerParameter& own = parameters.all[i];
  const Residuals& residuals = parameters.residuals;
  const ExchangeContext& context = parameters.context();
  ReducerState::Parameter state{
      .name = own.name,
      .codec = own.predictions.empty() ? param.codec->spec().text() : policy.chosen_codec(i),
      .count = own.count,
      .residual_first = parameters.feedback[i].sender_first,
      .residual = to_floats(residuals.current_sender(i), stream),
      .owner = to_floats(residuals.current_owner(i), stream),
      .memory = to_floats(residuals.current_memory(i, memory_count(param)), stream)};
  for (int rank = 0; rank < context.ranks.count; ++rank) {
    const StateRanges ranges = feedback_ranges(context, own, param, rank);
    state.longest_residual = std::max<std::uint64_t>(state.longest_residual, ranges.encoded.count);
    state.longest_owner = std::max<std::uint64_t>(state.longest_owner, ranges.owned.count());
  }
  return state;
}

// The single residual of a portable state includes the residuals of owners.
void load_parameter(const ReducerState& state, HeldBy holders, std::size_t i,
                    Parameters& parameters, StreamView stream) {
  const ReducerState::Parameter& found = state.parameters[i];
  const ExchangeParameter& param = parameters.params[i];
  const ValueSpan residual = parameters.residuals.current_sender(i);
  if (state.form == ReducerState::Form::kExact) {
    from_floats(found.residual, 1.0f, residual, stream);
    from_floats(found.owner, 1.0f, parameters.residuals.current_owner(i), stream);
  } else {
    const float factor = loading_factor(state, holders, parameters, i);
    from_floats(residual_part(found.residual, parameters.feedback[i], residual.count()), factor,
                residual, stream);
  }
  if (found.codec == param.codec->spec().text())
    from_floats(found.memory, 1.0f, parameters.residuals.current_memory(i, memory_count(param)),
                stream);
}

/// Converts the exact state to residuals of whole parameters, including the owner's residuals: the
/// values this rank would still add in later steps.
void fold(ReducerState& state, const Parameters& parameters) {
  state.form = ReducerState::Form::kPortable;
  const ExchangeContext& context = parameters.context();
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const ExchangeParameter& param = parameters.params[i];
    ReducerState::Parameter& parameter = state.parameters[i];
    const std::size_t count = param.codec->has_feedback() ? parameter.count : 0;
    parameter.residual = folded({parameter.residual, parameter.owner}, parameters.feedback[i],
                                residual_scales(context, param), count);
    parameter.residual_first = 0;
    parameter.longest_residual = parameter.residual.size();
    parameter.owner.clear();
    parameter.longest_owner = 0;
  }
}

/// Combines the parts of all ranks. `sum` replaces values by their sum over ranks.
void sum_parts(ReducerState& state, const std::function<void(std::vector<float>&)>& sum) {
  std::vector<float> all;
  for (const ReducerState::Parameter& parameter : state.parameters)
    for (const std::vector<float>* values : {&parameter.residual, &parameter.memory})
      all.insert(all.end(), values->begin(), values->end());
  sum(all);
  auto next = all.begin();
  for (ReducerState::Parameter& parameter : state.parameters)
    for (std::vector<float>* values : {&parameter.residual, &parameter.memory})
      for (float& value : *values) value = *next++;
}

/// The state was checked before. Parameters with "auto" already use the codecs of the state.
void load_residuals(const ReducerState& state, HeldBy holders, Parameters& parameters,
                    StreamView stream) {
  parameters.residuals.clear();
  for (std::size_t i = 0; i < parameters.count(); ++i)
    load_parameter(state, holders, i, parameters, stream);
  parameters.fold_unused_owners(stream);
}

}  // namespace

// Queueing transports do all work on the trainer's thread, so a single channel is enough.
Transport& GradientReducer::Impl::control() {
  if (context_.queues) return *channel_;
  if (control_ == nullptr) control_ = transport_.channel();
  return *control_;
}

// Uses the memory supported by the transport's sums: on a device, the transport may accept no other
// memory.
void GradientReducer::Impl::sum(std::vector<float>& values) {
  Transport& transport = control();
  const Buffer buffer(values.size() * sizeof(float), parameters_.memory());
  const ValueSpan all = buffer.values(values.size(), Dtype::kF32);
  from_floats(values, 1.0f, all, stream());
  std::vector<ValueSpan> parts;
  for (int part = 0; part < context_.ranks.count; ++part) {
    const Range range = part_range(all.count(), part, context_.ranks.count);
    parts.push_back(all.subspan(range.first, range.count));
  }
  transport
      .sum({.name = "gradient reducer (portable state)",
            .signature = context_.signature,
            .agreement = context_.call.agreement,
            .tag = transport.reserve_tags(1),
            .timeout = context_.call.timeout,
            .memory = all.memory(),
            .stream = stream()},
           parts)
      .wait_synchronize();
  values = to_floats(all, stream());
}

ReducerState GradientReducer::Impl::exact_state() {
  LockedStep step = stopped_between_steps("save_state()");
  finalize(step);
  ReducerState state{.form = ReducerState::Form::kExact,
                     .reduction = options_.reduction,
                     .ranks = static_cast<std::uint32_t>(context_.ranks.count),
                     .rank = static_cast<std::uint32_t>(context_.ranks.rank),
                     .step = backend_->step(),
                     .order = step->order(),
                     .parameters = {}};
  for (std::size_t i = 0; i < parameters_.count(); ++i)
    state.parameters.push_back(exact_parameter(parameters_, i, policy_, stream()));
  return state;
}

void GradientReducer::Impl::load(const ReducerState& state, std::uint64_t common) {
  LockedStep step = between_steps("load_state()");
  check_unweighted("load_state()");
  finalize(step);
  check_state(state, parameters_);
  step_offset_ = state.step - step->number();
  apply_phases(step);
  adopt_policy(step, state);
  load_residuals(state, HeldBy::kAll, parameters_, stream());
  backend_->set_step(state.step);
  const bool exact = state.form == ReducerState::Form::kExact;
  if (exact && !in_ready_order()) step->propose(state.order);
  if (!loaded_.has_value()) parameters_.loaded_states += 1;
  loaded_ = describe(state, parameters_, common);
  context_.set_agreement(parameters_.agreement(policy_.learns()));
}

// `state` is the exact state of a reducer over more ranks. A rank of a hierarchical reducer holds
// part of the host's residual, and holds another part from now on. The remaining ranks therefore
// add up all parts, and codecs start without memory.
void GradientReducer::Impl::inherit(LockedStep& step, ReducerState& state, const Impl& previous) {
  fold(state, previous.parameters_);
  const bool hierarchical = previous.hierarchy_ != nullptr;
  if (hierarchical) {
    for (ReducerState::Parameter& one : state.parameters) std::ranges::fill(one.memory, 0.0f);
    run_or_fail(step, [&] { sum_parts(state, [&](std::vector<float>& values) { sum(values); }); });
  }
  load_residuals(state, hierarchical ? HeldBy::kAll : HeldBy::kThisRank, parameters_, stream());
}

void GradientReducer::relearn_order() {
  OnDevice(*impl_)->between_steps("relearn_order()")->reset_order();
}

std::vector<std::byte> GradientReducer::save_state() const {
  return write_state(OnDevice(*impl_)->exact_state());
}

// The sum over ranks of all senders' and owners' residuals. The codecs' memories are equal: the
// portable state has the memory of one rank.
std::vector<std::byte> GradientReducer::save_portable_state() const {
  Impl& impl = *impl_;
  const OnDevice on_device(impl);
  ReducerState state = impl.exact_state();
  fold(state, impl.parameters_);
  for (std::size_t i = 0; i < state.parameters.size(); ++i)
    if (!has_codec_memory(impl.context_, impl.parameters_.params[i]))
      std::ranges::fill(state.parameters[i].memory, 0.0f);
  sum_parts(state, [&](std::vector<float>& values) { impl.sum(values); });
  return write_state(state);
}

void GradientReducer::load_state(std::span<const std::byte> state, std::uint64_t common) {
  OnDevice(*impl_)->load(read_state(state), common);
}

}  // namespace tersor
