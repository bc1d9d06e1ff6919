// What is done to residuals between steps: checkpoints, steps that are thrown away.
#include "comm/collectives/host_copy.h"
#include "comm/reducer/checkpoint.h"
#include "comm/reducer/impl.h"

namespace tersor {
namespace {

// In the memory that the transport adds: on a device there may be no other.
void sum_over_ranks(Transport& transport, const ExchangeContext& context, Memory memory,
                    StreamView stream, std::vector<float>& values) {
  const Buffer buffer(values.size() * sizeof(float), memory);
  const ValueSpan all = buffer.values(values.size(), Dtype::kF32);
  from_floats(values, 1.0f, all, stream);
  std::vector<ValueSpan> parts;
  for (int part = 0; part < context.ranks; ++part) {
    const Range range = part_range(all.count(), part, context.ranks);
    parts.push_back(all.subspan(range.first, range.count));
  }
  transport
      .sum({.name = "gradient reducer (portable state)",
            .signature = context.signature,
            .tag = transport.reserve_tags(1),
            .timeout = context.timeout,
            .memory = all.memory(),
            .stream = stream},
           parts)
      .wait_synchronize();
  values = to_floats(all, stream);
}

}  // namespace

// With ticks all happens on the trainer's thread, so that one channel is enough.
Transport& GradientReducer::Impl::control() {
  if (context_.queues()) return *channel_;
  if (control_ == nullptr) control_ = transport_.channel();
  return *control_;
}

ReducerState GradientReducer::Impl::exact_state() {
  LockedStep step = between_steps();
  finalize(step);
  return {.form = ReducerState::Form::kExact,
          .reduction = options_.reduction,
          .ranks = static_cast<std::uint32_t>(context_.ranks),
          .rank = static_cast<std::uint32_t>(context_.rank),
          .step = residence_->step(),
          .order = step->order_known() ? step->order() : ReducerStep::Order{},
          .parameters = tersor::exact_state(parameters_, ways_, stream())};
}

void GradientReducer::Impl::load(const ReducerState& state) {
  LockedStep step = between_steps();
  finalize(step);
  check_state(state, parameters_);
  steps_before_ = state.step - step->number();
  follow_phases(step);
  adopt_ways(step, state);
  load_residuals(state, parameters_, stream());
  residence_->set_step(state.step);
  const bool exact = state.form == ReducerState::Form::kExact;
  if (exact && !state.order.empty() && !of_ready()) sender_->adopt_order(step, state.order);
}

void GradientReducer::relearn_order() { impl_->between_steps()->forget_order(); }

void GradientReducer::scale_residuals(float factor) {
  const auto lock = impl_->between_steps();
  impl_->parameters_.residuals.scale(factor);
}

void GradientReducer::discard_step() {
  Impl& impl = *impl_;
  try {
    impl.finish_steps();
  } catch (const Error&) {
    return;  // the step never became current: the residuals from before it stand
  }
  const auto lock = impl.step_.lock();
  if (impl.options_.transactions != Transactions::kOn)
    throw InvalidArgument("discard_step() needs ReducerOptions::transactions = kOn");
  if (!impl.parameters_.residuals.discard())
    throw InvalidArgument("there is no step to discard: each can be discarded once");
  impl.residence_->set_step(impl.residence_->step() - 1);
  impl.steps_before_ -= 1;
  impl.totals_.note_discarded();
  impl.parameters_.bind();
}

std::vector<std::byte> GradientReducer::save_state() const {
  return write_state(impl_->exact_state());
}

std::vector<std::byte> GradientReducer::save_portable_state() const {
  Impl& impl = *impl_;
  ReducerState state = impl.exact_state();
  make_portable(state, impl.parameters_, [&](std::vector<float>& values) {
    sum_over_ranks(impl.control(), impl.context_, impl.parameters_.memory(), impl.stream(), values);
  });
  return write_state(state);
}

void GradientReducer::load_state(std::span<const std::byte> state) {
  impl_->load(read_state(state));
}

}  // namespace tersor
