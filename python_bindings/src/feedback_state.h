// The error feedback state of a collective, in owned memory or in the caller's memory.
#pragma once

#include <tersor/buffer.h>
#include <tersor/collectives.h>

#include <cstddef>

namespace tersor::python {

struct FeedbackCounts {
  std::size_t encoded = 0;  ///< number of values encoded by this rank
  std::size_t owned = 0;    ///< number of values reduced by this rank for others
};

/// A CollectiveState and its memory.
class FeedbackState {
 public:
  /// Allocates zeros on the host or on the current device. Waits for the device once.
  FeedbackState(FeedbackCounts counts, Dtype dtype, Memory memory);

  /// Uses the caller's memory, which must outlive this object. `owner` is the residual of the
  /// values reduced by this rank; empty for other collectives.
  FeedbackState(const ValueSpan& residual, const ValueSpan& owner, StateWords* words);
  FeedbackState(const FeedbackState&) = delete;  // the state points into this object
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
