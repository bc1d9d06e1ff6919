#include "comm/reducer/weights.h"

#include "comm/reducer/impl.h"

#include <tersor/error.h>

#include <cmath>
#include <numeric>
#include <string>

namespace tersor {

void StepWeights::set(double samples) {
  if (!std::isfinite(samples) || samples < 0)
    throw InvalidArgumentError("samples of weigh() is " + std::to_string(samples) +
                               ": give a finite number of samples, 0 or more");
  if (is_set())
    throw InvalidArgumentError(
        "call weigh() once in a step, before the first gradient is ready: wait() or flush() ends a "
        "step");
  state_ = State::kSet;
  samples_ = samples;
}

std::optional<double> StepWeights::take_unsent() {
  if (state_ != State::kSet) return std::nullopt;
  state_ = State::kSent;
  return samples_;
}

void StepWeights::set_samples(int rank, std::span<const double> samples) {
  const double sum = std::accumulate(samples.begin(), samples.end(), 0.0);
  const double share = samples[static_cast<std::size_t>(rank)] / sum;
  factor_ = static_cast<float>(share * static_cast<double>(samples.size()));
  samples_ = sum;
  state_ = State::kKnown;
}

void StepWeights::check() {
  const double sum = samples_;
  if (std::isfinite(sum) && sum > 0) return;
  end();
  throw InvalidArgumentError("the samples of all ranks add up to " +
                             std::string(sum > 0 ? "infinity" : "0") +
                             ": call weigh() again, with samples above 0 on at least one rank");
}

// Ranks exchange the numbers after a flushed step is complete. The first exchange begins when a
// gradient is ready, because the gradient determines the device.
void GradientReducer::Impl::weigh(double samples) {
  if (options_.weighted == Weighted::kOff)
    throw InvalidArgumentError("weigh() needs the option weighted, on all ranks");
  LockedStep step = step_.lock();
  step->rethrow();
  if (driver_ != nullptr) finalize(step);
  weights_.set(samples);
  if (context_.ranks.count == 1) weights_.set_samples(0, {&samples, 1});
  if (driver_ == nullptr) return;
  driver_->wake(step);
  step.unlock();
  driver_->send(Driver::Drain::kNo);
}

void GradientReducer::Impl::check_unweighted(std::string_view call) const {
  if (driver_ != nullptr && weights_.is_set())
    throw InvalidArgumentError(std::string(call) + " after weigh(): call weigh() last");
}

// Call before the step's first message.
void GradientReducer::Impl::wait_for_weights(LockedStep& step) {
  if (options_.weighted == Weighted::kOff) return;
  if (backend_->captured())
    throw InvalidArgumentError(
        "a step with sample weights cannot be captured, because a graph would keep one step's "
        "weights: turn weighted off");
  if (!weights_.is_set())
    throw InvalidArgumentError(
        "the option weighted is on: call weigh() in each step before the first gradient is ready");
  wait_until(step, [this] { return weights_.known(); });
  weights_.check();
}

void GradientReducer::weigh(double samples) { OnDevice(*impl_)->weigh(samples); }

}  // namespace tersor
