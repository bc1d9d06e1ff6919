// The trainer's side of a step.
#include "comm/reducer/impl.h"

#include <algorithm>

namespace tersor {
namespace {

void check_distinct(ReducerStep::Order parameters, std::string_view first) {
  std::ranges::sort(parameters);
  if (std::ranges::adjacent_find(parameters) != parameters.end())
    throw InvalidArgumentError(
        "a call for \"" + std::string(first) +
        "\" and others contains a parameter twice: pass each parameter once");
}

// The parameters whose absence is an error. Without a gradient, the result has no destination.
std::string missing_gradients(const ReducerStep& step, const Parameters& parameters,
                              const Gradients& gradients) {
  const bool may_miss = parameters.options().missing == MissingGradient::kInactive;
  std::string names;
  for (std::uint32_t i = 0; i < parameters.count(); ++i) {
    if (step.is_ready(i) || (may_miss && gradients.has(i))) continue;
    names += (names.empty() ? "\"" : ", \"") + parameters.all[i].name + "\"";
  }
  return names;
}

// Messages of the current step may be under way and change residuals.
void check_between_steps(const ReducerStep& step, std::string_view call) {
  if (step.untouched()) return;
  throw InvalidArgumentError("call " + std::string(call) +
                             " between two steps: gradients of the current step are ready");
}

}  // namespace

// Waits for the driving thread, or drives if there is no driving thread.
void GradientReducer::Impl::wait_until(LockedStep& step, const std::function<bool()>& is_done) {
  while (!is_done()) {
    step->rethrow();
    driver_->wait(step);
  }
}

void GradientReducer::Impl::wait_for_closed(LockedStep& step) {
  wait_until(step, [&step] { return !step->closed(); });
}

// A captured graph keeps the addresses of a single step. Residuals with alternating generations
// would make the graph read the same old generation in every replay.
void GradientReducer::Impl::begin_ready(LockedStep& step) {
  step->rethrow();
  finalize(step);
  wait_for_closed(step);
  wait_for_weights(step);
  apply_phases(step);
  update_learner(step);
  if (options_.transactional == Transactional::kOn && backend_->captured())
    throw InvalidArgumentError(
        "a step that keeps the earlier residuals cannot be captured: turn "
        "transactional off");
  step->set_awaited();
  request_agreement(step);
}

void GradientReducer::Impl::request_agreement(LockedStep& step) {
  if (!loaded_.has_value() || context_.ranks.count == 1) return;
  if (backend_->captured())
    throw InvalidArgumentError(
        "after load_state() ranks compare their states in the next step, which "
        "cannot be captured: run one step before the capture");
  sender_->request_agreement(step, *loaded_);
}

void GradientReducer::Impl::check_ready(LockedStep& step, const Ready& one) const {
  if (step->is_ready(one.parameter))
    throw InvalidArgumentError(
        "\"" + parameters_.all[one.parameter].name +
        "\" was ready before in this step: end a step with wait() or flush()");
  gradients_.check(one.parameter, one.spans);
}

// Steps with changing sets of parameters need a limit, because each set has messages. A captured
// graph holds the addresses of messages.
void GradientReducer::Impl::limit_messages(LockedStep& step) {
  if (!sender_->has_many_messages() || !step->untouched()) return;
  if (policy_.was_captured() || backend_->captured()) return;
  backend_->synchronize();
  sender_->drop_messages(step);
}

// Returns true if messages must be sent.
bool GradientReducer::Impl::request(LockedStep& step, const ReducerStep::Order& together) {
  bool requested = false;
  if (in_ready_order()) limit_messages(step);
  if (!in_ready_order())
    for (const std::uint32_t parameter : together) requested |= step->ready(parameter);
  else if (context_.ranks.count > 1)
    requested = step->request(together, sender_->messages_of(step, together));
  else
    step->request(together, {});
  if (context_.ranks.count == 1)
    for (const std::uint32_t parameter : together) {
      gradients_.copy_to_shard(parameter);
      if (in_ready_order()) step->set_parameter_done(parameter);
    }
  return requested;
}

ReducerHandle GradientReducer::Impl::handle_of(LockedStep& step, std::uint32_t parameter) const {
  ReducerHandle handle;
  handle.shared_ = handle_;
  handle.parameter_ = parameter;
  handle.step_ = step->number();
  return handle;
}

ReducerHandle GradientReducer::Impl::ready(Ready one) {
  ReducerHandle handle;
  ready({&one, 1}, {&handle, 1});
  return handle;
}

void GradientReducer::Impl::ready(std::span<const Ready> together,
                                  std::span<ReducerHandle> handles) {
  ReducerStep::Order parameters;
  for (const Ready& one : together) parameters.push_back(one.parameter);
  LockedStep step = step_.lock();
  if (together.size() > 1) check_distinct(parameters, parameters_.all[parameters.front()].name);
  begin_ready(step);
  for (const Ready& one : together) check_ready(step, one);
  for (const Ready& one : together) gradients_.claim_memory(*step, one.parameter, one.spans);
  for (std::size_t i = 0; i < together.size(); ++i) {
    gradients_.stage(together[i].parameter, together[i].spans, together[i].contribution);
    handles[i] = handle_of(step, together[i].parameter);
    trace(TraceType::kReady, training_step(step), together[i].parameter, Clock::now());
  }
  if (request(step, parameters)) {  // under the lock, before another thread takes the messages
    backend_->order_after_trainer();
    driver_->wake(step);
  }
  step.unlock();
  driver_->send(Driver::Drain::kNo);
}

// Marks parameters without a gradient as inactive. Returns true if messages are requested.
bool GradientReducer::Impl::mark_missing(LockedStep& step) {
  if (in_ready_order()) return false;
  const std::string missing_names = missing_gradients(*step, parameters_, gradients_);
  if (!missing_names.empty()) fail_missing(step, missing_names);
  bool requested = false;
  std::vector<std::uint32_t> missing;
  for (std::uint32_t i = 0; i < parameters_.count(); ++i)
    if (!step->is_ready(i)) missing.push_back(i);
  for (const std::uint32_t one : missing) gradients_.claim_memory(*step, one, std::nullopt);
  for (const std::uint32_t one : missing) {
    gradients_.deactivate(one);
    requested |= step->ready(one);
  }
  return requested;
}

void GradientReducer::Impl::fail_missing(LockedStep& step, const std::string& names) {
  const std::string cause = "at the end of step " + std::to_string(step->number()) +
                            " these parameters were not ready: " + names;
  channel_->abort(cause);
  step->fail(std::make_exception_ptr(InvalidArgumentError(
      cause + "; call ready() for each, with the contribution none if there is no gradient")));
  step->rethrow();
}

// Errors since the last complete step are raised in the next step.
void GradientReducer::Impl::close_step(LockedStep& step) {
  if (step->completed_unawaited()) return;
  step->rethrow();
  finalize(step);
  if (!step->can_close()) return;
  wait_for_weights(step);
  apply_phases(step);
  update_learner(step);
  if (backend_->captured()) policy_.record_capture();
  if (!in_ready_order()) request_agreement(step);
  const bool requested = mark_missing(step);
  step->close();
  weights_.end();
  const bool barrier = step->all_done() && options_.elastic == Elastic::kOn;
  if (context_.ranks.count == 1 || parameters_.count() == 0 || (step->all_done() && !barrier))
    return complete_step(step);
  if (requested) backend_->order_after_trainer();
  if (requested || barrier || !step->order_known()) driver_->wake(step);
}

void GradientReducer::Impl::flush() {
  {
    LockedStep step = step_.lock();
    close_step(step);
  }
  driver_->send(Driver::Drain::kYes);
}

void GradientReducer::Impl::wait() {
  const auto start = Clock::now();
  if (driver_ != nullptr) driver_->check_faults();
  LockedStep step = step_.lock();
  close_step(step);
  wait_for_closed(step);
  backend_->order_before_trainer();
  step->set_awaited();
  record_wait();
  record_exposed(training_step(step) - 1, start);
}

void GradientReducer::Impl::trace(TraceType type, std::uint32_t step, std::uint32_t parameter,
                                  Clock::time_point begin) {
  if (trace_ != nullptr) trace_->trainer.record({type, step, parameter, begin, Clock::now()});
}

void GradientReducer::Impl::record_exposed(std::uint32_t step, Clock::time_point begin) {
  totals_.record_exposed(seconds_since(begin));
  trace(TraceType::kWait, step, 0, begin);
}

// Finishes a flushed step. Starts no step.
void GradientReducer::Impl::finish_steps() {
  LockedStep step = step_.lock();
  step->rethrow();
  wait_for_closed(step);
}

// An error that ended the exchange is ignored here, because statistics are most useful after an
// error.
LockedStep GradientReducer::Impl::stopped() {
  try {
    finish_steps();
  } catch (const Error&) {
    if (!step_.lock()->failed()) throw;
  }
  return step_.lock();
}

LockedStep GradientReducer::Impl::between_steps(std::string_view call) {
  finish_steps();
  check_between_steps(*step_.lock(), call);
  return step_.lock();
}

LockedStep GradientReducer::Impl::stopped_between_steps(std::string_view call) {
  if (const LockedStep step = stopped(); !step->failed()) check_between_steps(*step, call);
  return step_.lock();
}

void GradientReducer::Impl::check_requested(LockedStep& step, std::uint32_t parameter) {
  if (step->closed()) return;
  const std::string& name = parameters_.all[parameter].name;
  if (context_.queues &&
      !in_ready_order())  // ranks progress differently, but all must send in the same order
    throw InvalidArgumentError("flush() before waiting for \"" + name +
                               "\": over this transport all ranks send a whole step");
  wait_until(step, [&] { return !step->agreement_pending(); });
  if (!step->order_known())
    throw InvalidArgumentError("the first step is sent at its end: flush() before waiting for \"" +
                               name + "\"");
  if (!step->is_requested(parameter))
    throw InvalidArgumentError(
        "\"" + name + "\" shares a message with parameters that are not ready: flush() first");
}

void GradientReducer::Impl::wait_for(std::uint32_t parameter, std::uint32_t number) {
  const auto start = Clock::now();
  LockedStep step = step_.lock();
  const auto is_done = [&] { return step->is_done(parameter, number); };
  if (!is_done()) {
    step->rethrow();
    check_requested(step, parameter);
    wait_until(step, is_done);
  }
  backend_->order_before_trainer();
  if (number != step->number()) record_wait();
  record_exposed(number + step_offset_, start);
}

bool GradientReducer::Impl::test(std::uint32_t parameter, std::uint32_t number) {
  progress();
  const LockedStep step = step_.lock();
  const bool done = step->is_done(parameter, number);
  if (done) backend_->order_before_trainer();
  if (!done) step->rethrow();
  return done;
}

void GradientReducer::Impl::progress() {
  if (driver_ != nullptr) driver_->progress();
}

// All messages arrived: commits the written state.
void GradientReducer::Impl::complete_step(LockedStep& step) {
  backend_->advance_step();
  parameters_.commit([&](std::size_t parameter) {
    return step->is_ready(static_cast<std::uint32_t>(parameter)) &&
           !gradients_.is_globally_unused(parameter);
  });
  if (step->has_agreed()) loaded_.reset();
  gradients_.end_step();
  totals_.record_step(context_, sender_->wire_seconds(),
                      [&](std::uint32_t parameter) { return step->is_ready(parameter); });
  step->complete();
}

}  // namespace tersor
