// Preparation before the first step of a reducer, and before later steps with new parameters.
#include "comm/collectives/planner.h"
#include "comm/reducer/impl.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

namespace tersor {

// Called before a step. If this function throws, the next call starts again.
void GradientReducer::Impl::finalize(LockedStep& step) {
  if (sender_ == nullptr)
    begin(step);
  else if (prepared_count_ < parameters_.count())
    extend_parameters(step);
  prepared_count_ = parameters_.count();
}

void GradientReducer::Impl::begin(LockedStep& step) {
  policy_.begin();
  policy_.apply(training_step(step));  // the memory of codecs is new
  backend_ = make_memory_backend(parameters_.memory(), options_.stream);
  backend_->bind(context_);
  parameters_.residuals.set_backend(*backend_);
  prepare_added(step);
  context_.set_agreement(parameters_.agreement(policy_.learns()));
  context_.sum_transport = sum_transport_of(context_);
  make_sender();
}

// No message is under way, because `add` checked this. If a new parameter uses "auto", the learner
// starts again.
void GradientReducer::Impl::extend_parameters(LockedStep& step) {
  const auto is_new = std::span(parameters_.all).subspan(prepared_count_);
  const bool learns = std::ranges::any_of(
      is_new, [](const ReducerParameter& one) { return !one.predictions.empty(); });
  prepare_added(step);
  if (learns) policy_.begin();
  change_policy(step);
}

void GradientReducer::Impl::prepare_added(LockedStep& step) {
  step->set_parameters(parameters_.count(), options_.order);
  backend_->set_parameters(parameters_.count());
  gradients_.set_backend(*backend_);
  totals_.set_parameters(parameters_.count());
  context_.params = parameters_.params;
  context_.bindings = parameters_.bindings;
  context_.feedback = parameters_.feedback;
  context_.counters.resize(parameters_.count());
  parameters_.allocate_residuals(*backend_);
}

void GradientReducer::Impl::make_sender() {
  const BucketOptions limits{policy_.algorithm(), options_.bucket_bytes, options_.chunk_count};
  auto sender = std::make_unique<Sender>(
      step_, context_, *backend_, weights_,
      Sender::Reducer{[this, limits](const ReducerStep::Order& order) {
                        return make_buckets(Planner(context_), order, limits);
                      },
                      [this](LockedStep& step) { complete_step(step); },
                      [this](const TransportError& cause) { return on_transport_error(cause); },
                      [this](const std::exception& cause) { abort_exchange(cause); },
                      options_.elastic == Elastic::kOn});
  driver_ = make_driver(options_.progress, context_, *sender);
  sender_ = std::move(sender);
}

}  // namespace tersor
