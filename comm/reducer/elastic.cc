// Elastic reducers: continue without lost ranks. The remaining ranks agree on the members. All
// members commit the current step, or all discard the step. Another reducer over the members then
// replaces this reducer.
#include "comm/reducer/impl.h"

#include <tersor/error.h>

#include <string>
#include <utility>

namespace tersor {
namespace {

/// `renumbered`: True if an earlier loss changed the rank numbers.
std::string lost_text(const std::string& cause, const Survivors::Agreed& agreed, bool renumbered) {
  std::string lost;
  for (const int rank : agreed.lost)
    lost += (lost.empty() ? "rank " : ", rank ") + std::to_string(rank);
  const std::size_t left = agreed.members.size();
  std::string text = lost + " failed after step " + std::to_string(agreed.steps) + "; " +
                     std::to_string(left) + (left == 1 ? " rank remains" : " ranks remain");
  if (renumbered) text += " (ranks are numbered as before the first loss)";
  text += agreed.enough ? ". Call resume() to continue."
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
std::exception_ptr GradientReducer::Impl::lost(const TransportError& cause) {
  if (survivors_ == nullptr) return std::make_exception_ptr(cause);
  try {
    return agree_on_members(cause);
  } catch (const TransportError& error) {
    return std::make_exception_ptr(
        TransportError(std::string(cause.what()) + "; " + error.what(), cause.disagreement()));
  } catch (const std::exception& error) {
    give_up(error);
    return std::current_exception();
  }
}

// If no rank is missing, the original error is reported unchanged.
std::exception_ptr GradientReducer::Impl::agree_on_members(const TransportError& cause) {
  const std::uint32_t steps = step_.lock()->number();
  const bool renumbered = !survivors_->explain().empty();
  const Survivors::Agreed agreed = survivors_->agree(steps);
  LockedStep step = step_.lock();
  if (agreed.steps > step->number() && step->all_back()) complete_step(step);
  if (agreed.lost.empty()) return std::make_exception_ptr(cause);
  resumable_ = agreed.enough ? Resumable::kYes : Resumable::kTooFew;
  return std::make_exception_ptr(RanksLostError(lost_text(cause.what(), agreed, renumbered),
                                                agreed.members, agreed.steps,
                                                cause.disagreement()));
}

void GradientReducer::Impl::give_up(const std::exception& cause) {
  channel_->abort(cause.what());
  if (survivors_ != nullptr) survivors_->give_up();
}

// After a transport error, an elastic reducer waits here, because only the sender agrees on the
// remaining ranks.
void GradientReducer::Impl::fail_together(LockedStep& step, const std::function<void()>& work) try {
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
  fail_together(step, [this] { transport_.wait_activity(Clock::now()); });
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
    next->go_on_from(*this);
  } catch (const TransportError&) {  // the sender of `next` has agreed on the remaining ranks
    resumable_ = next->resumable_;
    step_.lock()->fail_anew(std::current_exception());
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
              parameters_.all[i].given_anew ? ValueSpan{} : parameters_.all[i].gradient);
  return next;
} catch (const TransportError& cause) {
  const std::exception_ptr error = lost(cause);
  step_.lock()->fail_anew(error);
  std::rethrow_exception(error);
}

void GradientReducer::Impl::go_on_from(Impl& before) {
  ReducerState state = before.exact_state();
  LockedStep step = step_.lock();
  step->go_on_from(before.step_.lock()->number());
  steps_before_ = before.steps_before_;
  loaded_ = before.loaded_;
  parameters_.loaded_states = before.parameters_.loaded_states;
  finalize(step);
  take_over(step, state, before);
  backend_->set_step(state.step);
  totals_.go_on_from(before.totals_, context_);
  handle_ = std::move(before.handle_);
  handle_->reducer = this;
}

}  // namespace tersor
