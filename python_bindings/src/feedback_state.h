// What error feedback keeps between calls of one collective, in memory of its own or of the
// caller's.
#pragma once

#include <tersor/buffer.h>
#include <tersor/collectives.h>

#include <cstddef>

namespace tersor::python {

struct FeedbackCounts {
  std::size_t encoded = 0;  ///< values that this rank encodes
  std::size_t owned = 0;    ///< values that it reduces for others
};

class FeedbackState {
 public:
  /// Zeros, on the host or on the current device, for which it then waits once.
  FeedbackState(FeedbackCounts counts, Dtype dtype, Memory memory);

  /// In the caller's memory, which outlives it. `owner`: of what this rank reduces for others;
  /// empty for collectives in which it does not.
  FeedbackState(const ValueSpan& residual, const ValueSpan& owner, StateWords* words);
  FeedbackState(const FeedbackState&) = delete;  // its state points into itself
  FeedbackState& operator=(const FeedbackState&) = delete;

  const CollectiveState& state() const { return state_; }
  std::size_t bytes() const { return state_.residual.bytes() + state_.owner_residual.bytes(); }

 private:
  Buffer residuals_;
  Buffer device_words_;
  StateWords words_;
  CollectiveState state_;
};

}  // namespace tersor::python
