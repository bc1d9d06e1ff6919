// The trainer's side of a step.
#include "comm/reducer/impl.h"

#include <algorithm>

namespace tersor {
namespace {

bool scatters(const Slot& slot) { return slot.collective == Collective::kReduceScatter; }

void check_apart(std::span<const ReadyGradient> together, ReducerStep::Order parameters) {
  std::ranges::sort(parameters);
  if (std::ranges::adjacent_find(parameters) != parameters.end())
    throw InvalidArgument("one call makes the same parameter ready twice, of \"" +
                          std::string(together.front().name) + "\" and others");
}

}  // namespace

// Waits for the driving thread, or drives where there is none.
void GradientReducer::Impl::wait_until(ReducerStep::Lock& lock,
                                       const std::function<bool()>& is_done) {
  while (!is_done()) {
    step_.rethrow();
    driver_->wait(lock);
  }
}

void GradientReducer::Impl::wait_for_closed(ReducerStep::Lock& lock) {
  wait_until(lock, [this] { return !step_.closed(); });
}

void GradientReducer::Impl::bind_residuals() {
  for (std::size_t i = 0; i < residuals_.parameters(); ++i) {
    slots_[i].residual = residuals_.sender(i);
    const bool owes = parameters_[i].algorithm == Algorithm::kTwoShot;
    slots_[i].owner = owes ? residuals_.owner(i) : SegmentState{};
    slots_[i].memory = residuals_.memory(i, memory_count(slots_[i]));
  }
}

// Of a single rank the shard is all there is.
void GradientReducer::Impl::keep_own(std::uint32_t parameter) {
  const Slot& slot = slots_[parameter];
  if (scatters(slot)) residence_->copy(slot.input, slot.output);
  if (of_ready()) step_.set_parameter_back(parameter);
}

// A graph holds the addresses of one step: residuals that change places between steps would be
// read again and again, and written where nobody reads.
void GradientReducer::Impl::check_capture() const {
  if (options_.transactions == Transactions::kOn && residence_->captured())
    throw InvalidArgument(
        "a step cannot be captured where residuals are kept in two generations: set "
        "ReducerOptions::transactions to kOff");
}

void GradientReducer::Impl::begin_ready(ReducerStep::Lock& lock) {
  step_.rethrow();
  finalize();
  wait_for_closed(lock);
  follow_phases();
  learn();
  check_capture();
  step_.set_awaited();
}

void GradientReducer::Impl::check_ready(std::uint32_t parameter,
                                        const std::optional<Gradients::Given>& given) const {
  if (step_.is_ready(parameter))
    throw InvalidArgument("\"" + parameters_[parameter].name +
                          "\" is ready twice in one step; wait() or flush() ends a step");
  gradients_.check(parameter, given);
}

// True where messages are to be sent.
bool GradientReducer::Impl::request(const ReducerStep::Order& together) {
  bool requested = false;
  if (!of_ready())
    for (const std::uint32_t parameter : together) requested |= step_.ready(parameter);
  else if (context_.ranks > 1)
    requested = step_.request(together, sender_->messages_of(together));
  else
    step_.request(together, {});
  if (context_.ranks == 1)
    for (const std::uint32_t parameter : together) keep_own(parameter);
  return requested;
}

ReducerHandle GradientReducer::Impl::handle_of(std::uint32_t parameter) const {
  ReducerHandle handle;
  handle.shared_ = handle_;
  handle.parameter_ = parameter;
  handle.step_ = step_.number();
  return handle;
}

ReducerHandle GradientReducer::Impl::ready(std::uint32_t parameter,
                                           const std::optional<Gradients::Given>& given,
                                           Contribution contribution) {
  auto lock = step_.lock();
  begin_ready(lock);
  check_ready(parameter, given);
  gradients_.take(parameter, given, contribution);
  if (request({parameter})) notice_requests();
  ReducerHandle handle = handle_of(parameter);
  lock.unlock();
  driver_->send(Driver::Drain::kNo);
  return handle;
}

std::vector<ReducerHandle> GradientReducer::Impl::ready(std::span<const ReadyGradient> together) {
  ReducerStep::Order parameters;
  std::vector<Gradients::Given> given;
  for (const ReadyGradient& one : together) {
    parameters.push_back(index_of(one.name));
    given.push_back({one.gradient, one.shard});
  }
  check_apart(together, parameters);
  auto lock = step_.lock();
  begin_ready(lock);
  for (std::size_t i = 0; i < together.size(); ++i) check_ready(parameters[i], given[i]);
  std::vector<ReducerHandle> handles;
  for (std::size_t i = 0; i < together.size(); ++i) {
    gradients_.take(parameters[i], given[i], together[i].contribution);
    handles.push_back(handle_of(parameters[i]));
  }
  if (request(parameters)) notice_requests();
  lock.unlock();
  driver_->send(Driver::Drain::kNo);
  return handles;
}

// Before the lock is let go, and so before anybody takes them.
void GradientReducer::Impl::notice_requests() {
  residence_->follow_trainer();
  driver_->wake();
}

// Those whose absence is a mistake: the result has no place where no gradient was given.
std::string GradientReducer::Impl::wrongly_missing() const {
  std::string names;
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (step_.is_ready(i)) continue;
    if (options_.missing == MissingGradient::kInactive && gradients_.has(i)) continue;
    names += (names.empty() ? "\"" : ", \"") + parameters_[i].name + "\"";
  }
  return names;
}

// Parameters that had no gradient. True where that lets messages go.
bool GradientReducer::Impl::mark_missing() {
  if (of_ready()) return false;
  const std::string mistakes = wrongly_missing();
  if (!mistakes.empty()) fail_missing(mistakes);
  bool requested = false;
  for (std::uint32_t i = 0; i < parameters_.size(); ++i) {
    if (step_.is_ready(i)) continue;
    gradients_.leave_out(i);
    requested |= step_.ready(i);
  }
  return requested;
}

void GradientReducer::Impl::fail_missing(const std::string& names) {
  const std::string cause = "at the end of step " + std::to_string(step_.number()) +
                            " these parameters were not ready: " + names;
  channel_->poison(cause);
  step_.fail(std::make_exception_ptr(InvalidArgument(
      cause + "; call ready() for each, or set ReducerOptions::missing to kInactive")));
  step_.rethrow();
}

void GradientReducer::Impl::close_step() {
  step_.rethrow();
  finalize();
  if (!step_.ends()) return;
  follow_phases();
  learn();
  if (residence_->captured()) ways_.note_captured();
  const bool requested = mark_missing();
  step_.close();
  if (context_.ranks == 1 || slots_.empty() || step_.all_back()) return complete_step();
  if (requested) residence_->follow_trainer();
  if (requested || !step_.order_known()) driver_->wake();
}

void GradientReducer::Impl::flush() {
  {
    const auto lock = step_.lock();
    close_step();
  }
  driver_->send(Driver::Drain::kYes);
}

void GradientReducer::Impl::wait() {
  const auto start = Clock::now();
  if (driver_ != nullptr) driver_->hear_faults();
  auto lock = step_.lock();
  close_step();
  wait_for_closed(lock);
  residence_->lead_trainer();
  step_.set_awaited();
  note_waited();
  totals_.exposed_seconds += seconds_since(start);
}

// Ends a step that was flushed; begins nothing.
void GradientReducer::Impl::finish_steps() {
  auto lock = step_.lock();
  step_.rethrow();
  wait_for_closed(lock);
}

void GradientReducer::Impl::check_requested(std::uint32_t parameter) const {
  if (step_.closed()) return;
  const std::string& name = parameters_[parameter].name;
  if (context_.queues() && !of_ready())  // how far each rank is differs: all must send in one order
    throw InvalidArgument("flush() before waiting for \"" + name +
                          "\": over this transport a step is sent to its end by all ranks alike");
  if (!step_.order_known())
    throw InvalidArgument(
        "in the first step everything is sent at its end: flush() before waiting for \"" + name +
        "\"");
  if (!step_.is_requested(parameter))
    throw InvalidArgument("\"" + name +
                          "\" waits for others of its message that are not ready; flush() first");
}

void GradientReducer::Impl::wait_for(std::uint32_t parameter, std::uint32_t step) {
  const auto start = Clock::now();
  auto lock = step_.lock();
  const auto is_done = [&] { return step_.is_back(parameter, step); };
  if (!is_done()) {
    step_.rethrow();
    check_requested(parameter);
    wait_until(lock, is_done);
  }
  residence_->lead_trainer();
  if (step != step_.number()) note_waited();
  totals_.exposed_seconds += seconds_since(start);
}

bool GradientReducer::Impl::test(std::uint32_t parameter, std::uint32_t step) {
  progress();
  const auto lock = step_.lock();
  const bool done = step_.is_back(parameter, step);
  if (done) residence_->lead_trainer();
  if (!done) step_.rethrow();
  return done;
}

void GradientReducer::Impl::progress() {
  if (driver_ != nullptr) driver_->progress();
}

// Everything is back: what was written counts from now on.
void GradientReducer::Impl::complete_step() {
  residence_->advance_step();
  residuals_.commit([this](std::size_t parameter) {
    return step_.is_ready(static_cast<std::uint32_t>(parameter)) &&
           !gradients_.is_nowhere(parameter);
  });
  gradients_.end_step();
  bind_residuals();
  snapshot_totals();
  step_.complete();
}

}  // namespace tersor
