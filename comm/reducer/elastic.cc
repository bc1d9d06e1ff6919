// Elastic reducers: continue without lost ranks. The remaining ranks agree on the members. All
// members commit the current step, or all discard the step. Another reducer over the members then
// replaces this reducer.
#include "comm/reducer/impl.h"

#include <tersor/error.h>

#include <string>
#include <utility>

#include "comm/transport/timeout.h"

namespace tersor {
namespace {

/// `renumbered`: True if an earlier loss changed the rank numbers.
std::string lost_text(const std::string& cause, const Survivors::Decision& decision,
                      bool renumbered) {
  std::string lost;
  for (const int rank : decision.lost)
    lost += (lost.empty() ? "rank " : ", rank ") + std::to_string(rank);
  const std::size_t left = decision.members.size();
  std::string text = (lost.empty() ? "a rank was late" : lost + " failed") + " after step " +
                     std::to_string(decision.steps) + "; " + std::to_string(left) +
                     (left == 1 ? " rank remains" : " ranks remain");
  if (renumbered) text += " (ranks are numbered as before the first loss)";
  text += decision.has_quorum ? ". Call resume() to continue."
                              : ", too few to continue, because the other ranks may continue "
                                "(min_ranks).";
  return text + " Cause: " + cause;
}

void check_same_ranks(bool given, const std::string& what) {
  if (given)
    throw InvalidArgumentError("resume() does not support " + what +
                               ", because the ranks changed: leave it empty");
}

}  // namespace

// Runs in the sending thread while the trainer computes.
std::exception_ptr GradientReducer::Impl::on_transport_error(const TransportError& cause) {
  if (survivors_ == nullptr) return std::make_exception_ptr(cause);
  try {
    return agree_on_members(cause);
  } catch (const TransportError& error) {
    return std::make_exception_ptr(
        TransportError(std::string(cause.what()) + "; " + error.what(), cause.disagreement()));
  } catch (const std::exception& error) {
    abort_exchange(error);
    return std::current_exception();
  }
}

// If no rank is missing, and no rank was late, the original error is reported unchanged.
std::exception_ptr GradientReducer::Impl::agree_on_members(const TransportError& cause) {
  const std::uint32_t steps = step_.lock()->number();
  const bool renumbered = !survivors_->explain().empty();
  const bool is_timeout = dynamic_cast<const TimeoutError*>(&cause) != nullptr;
  const Survivors::Decision decision =
      survivors_->agree(steps, is_timeout ? Survivors::Cause::kTimeout : Survivors::Cause::kOther);
  LockedStep step = step_.lock();
  if (decision.steps > step->number() && step->all_done()) complete_step(step);
  if (decision.lost.empty() && !decision.is_repeat) return std::make_exception_ptr(cause);
  resumable_ = decision.has_quorum ? Resumable::kYes : Resumable::kTooFew;
  return std::make_exception_ptr(RanksLostError(lost_text(cause.what(), decision, renumbered),
                                                decision.members, decision.steps,
                                                cause.disagreement()));
}

void GradientReducer::Impl::abort_exchange(const std::exception& cause) {
  channel_->abort(cause.what());
  if (survivors_ != nullptr) survivors_->close();
}

// After a transport error, an elastic reducer waits here, because only the sender agrees on the
// remaining ranks.
void GradientReducer::Impl::run_or_fail(LockedStep& step, const std::function<void()>& work) try {
  work();
} catch (const TransportError&) {
  if (survivors_ != nullptr) wait_until(step, [] { return false; });
  step->fail(std::current_exception());
  throw;
} catch (const std::exception& error) {
  channel_->abort(error.what());
  step->fail(std::current_exception());
  throw;
}

void GradientReducer::Impl::check_faults() {
  LockedStep step = step_.lock();
  finalize(step);
  run_or_fail(step, [this] { transport_.wait_activity(Clock::now()); });
}

void GradientReducer::Impl::check_resumable() const {
  if (resumable_ == Resumable::kNo)
    throw InvalidArgumentError("resume() needs an earlier RanksLostError: no rank was lost");
  if (resumable_ == Resumable::kTooFew)
    throw InvalidArgumentError("resume() needs more ranks than the remaining " +
                               std::to_string(survivors_->members().size()) + " (min_ranks)");
  check_same_ranks(!options_.dims.empty(), "dims");
  check_same_ranks(!options_.hosts.empty(), "hosts");
}

// If another rank is lost meanwhile, this reducer stays in use with fewer ranks.
std::unique_ptr<GradientReducer::Impl> GradientReducer::Impl::resumed() {
  check_resumable();
  driver_.reset();  // the driver ended with the error
  std::unique_ptr<Impl> next = over_members();
  try {
    next->continue_from(*this);
  } catch (const TransportError&) {  // the sender of `next` has agreed on the remaining ranks
    resumable_ = next->resumable_;
    step_.lock()->replace_error(std::current_exception());
    throw;
  }
  return next;
}

std::unique_ptr<GradientReducer::Impl> GradientReducer::Impl::over_members() try {
  std::unique_ptr<Transport> members = survivors_->transport();
  auto next = std::make_unique<Impl>(*members, options_);
  next->own_transport_ = std::move(members);
  next->survivors_ = survivors_;
  for (std::size_t i = 0; i < parameters_.count(); ++i)
    next->add(parameters_.all[i].name, parameters_.shape(i),
              parameters_.all[i].per_step_gradient ? ValueSpan{} : parameters_.all[i].gradient);
  return next;
} catch (const TransportError& cause) {
  const std::exception_ptr error = on_transport_error(cause);
  step_.lock()->replace_error(error);
  std::rethrow_exception(error);
}

void GradientReducer::Impl::continue_from(Impl& previous) {
  ReducerState state = previous.exact_state();
  LockedStep step = step_.lock();
  step->continue_from(previous.step_.lock()->number());
  step_offset_ = previous.step_offset_;
  loaded_ = previous.loaded_;
  parameters_.loaded_states = previous.parameters_.loaded_states;
  finalize(step);
  inherit(step, state, previous);
  backend_->set_step(state.step);
  totals_.continue_from(previous.totals_, context_);
  handle_ = std::move(previous.handle_);
  handle_->reducer = this;
}

}  // namespace tersor
