// The operations of a codec that `tersor-bench codecs` times. Each checks what it yields before it
// is timed, and knows the plain loop over memory that moves as many bytes.
#pragma once

#include <tersor/error.h>
#include <tersor/span.h>
#include <tersor/threads.h>
#include <tersor/wire.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/baselines.h"
#include "codecs/planned_codec.h"

namespace tersor::bench {

/// The `count` values of a longer gradient that call number `index` takes.
ConstValueSpan step_of(ConstValueSpan gradient, std::size_t count, std::size_t index);

/// What an operation works on. The gradient outlives it and may be longer than `count`: each call
/// with feedback then takes another `count` of its values, as each step of a training would.
struct OperationInput {
  std::string codec;  ///< without "+ef"
  std::size_t count = 0;
  ConstValueSpan gradient;
  Checksum checksum = Checksum::kOn;
  Threads* threads = nullptr;

  ConstValueSpan step(std::size_t index) const { return step_of(gradient, count, index); }
  PlanFor plan_for() const { return {count, gradient.dtype(), checksum, threads}; }
};

/// What an operation is to time does not happen with these values: it is left out of the run.
class NotMeasurable : public Error {
 public:
  using Error::Error;
};

/// One operation of one codec on one gradient.
class CodecOperation {
 public:
  virtual ~CodecOperation() = default;

  /// Runs once and holds the result against what it should be. Returns the relative error of what
  /// was encoded. Throws Error where the result is wrong, NotMeasurable where it is not to be had.
  virtual double check() = 0;
  virtual void run() = 0;

  Baseline& baseline() { return *baseline_; }
  std::size_t payload_bytes() const { return payload_bytes_; }
  std::size_t workspace_bytes() const { return workspace_bytes_; }

 protected:
  std::unique_ptr<Baseline> baseline_;  ///< there once `check` returned
  std::size_t payload_bytes_ = 0;
  std::size_t workspace_bytes_ = 0;
};

inline constexpr std::string_view kEncode = "encode";
inline constexpr std::string_view kFeedback = "encode+feedback";
inline constexpr std::string_view kDecode = "decode";
inline constexpr std::string_view kDecodeAdd = "decode-add";
inline constexpr std::string_view kReduce = "reduce";

/// How many ranks' frames "reduce" adds.
inline constexpr std::size_t kReducedFrames = 4;

/// All names, in the order in which they are measured.
std::span<const std::string_view> operation_names();

/// Whether a codec may keep residuals.
bool accepts_feedback(const std::string& spec, const PlanFor& plan_for);

/// Those that a codec has, for `count` values of `dtype`.
std::vector<std::string> operations_of(const std::string& spec, std::size_t count, Dtype dtype);

/// Throws InvalidArgument where the codec has no such operation.
std::unique_ptr<CodecOperation> make_operation(std::string_view name, const OperationInput& input);

/// Throws Error unless `what` is within `limit`.
void require_within(double error, double limit, std::string_view what);

}  // namespace tersor::bench
