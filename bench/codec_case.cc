// Prepares, checks and times one case after the other.

#include "bench/codec_case.h"

#include <algorithm>

#include "bench/timing.h"

namespace tersor::bench {
namespace {

constexpr double kSampleSeconds = 1e-3;
constexpr std::uint64_t kGradientSeed = 1;

/// Values beside `count`, so that the steps of a training see other gradients; few enough to stay
/// in the cache where the gradient does.
std::size_t spare_values(std::size_t count) { return std::min<std::size_t>(count / 8, 1 << 20); }

}  // namespace

void CodecCaseRunner::make_gradient(const CodecCase& wanted) {
  const std::size_t most = source_.count().value_or(wanted.count + spare_values(wanted.count));
  const std::size_t count = std::max(wanted.count, most);
  if (gradient_.count() == count && gradient_.dtype() == wanted.dtype) return;
  gradient_storage_ = {};
  gradient_storage_ = sample_buffer(source_, count, wanted.dtype, kGradientSeed);
  gradient_ = gradient_storage_.values(count, wanted.dtype);
}

const CheckedOperation& CodecCaseRunner::prepare(const CodecCase& wanted) {
  if (current_ == wanted) return checked_;
  current_.reset();
  operation_.reset();
  make_gradient(wanted);
  force_isa(wanted.isa);
  if (threads_ == nullptr || threads_->count() != wanted.threads)
    threads_ = std::make_unique<Threads>(wanted.threads);
  operation_ = make_operation(wanted.operation, {.codec = wanted.codec,
                                                 .count = wanted.count,
                                                 .gradient = gradient_,
                                                 .checksum = wanted.checksum,
                                                 .threads = threads_.get()});
  checked_.relative_error = operation_->check();
  checked_.baseline = operation_->baseline().name();
  checked_.payload_bytes = operation_->payload_bytes();
  checked_.workspace_bytes = operation_->workspace_bytes();
  warm_up();
  current_ = wanted;
  return checked_;
}

void CodecCaseRunner::warm_up() {
  operation_calls_ = baseline_calls_ = 1;
  operation_calls_ = calls_for(std::max(time_operation(), 1e-9), kSampleSeconds);
  time_baseline();
  baseline_calls_ = calls_for(std::max(time_baseline(), 1e-9), kSampleSeconds);
}

double CodecCaseRunner::time_operation() {
  return seconds_per_call(operation_calls_, [this] { operation_->run(); });
}

double CodecCaseRunner::time_baseline() {
  return seconds_per_call(baseline_calls_, [this] { operation_->baseline().run(*threads_); });
}

}  // namespace tersor::bench
