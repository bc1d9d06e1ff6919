// Implements feedback_state.h.
#include "python_bindings/src/feedback_state.h"

#include "kernels/device/device_memory.h"

#include <tersor/align.h>
#include <tersor/stream.h>

#include <cstring>

namespace tersor::python {
namespace {

// The owner's values have the alignment of the sender's values.
std::size_t owner_offset(FeedbackCounts counts, Dtype dtype) {
  return align_up(counts.encoded * dtype_bytes(dtype), 64);
}

void clear_on_device(const Buffer& residuals, const Buffer& words) {
  const Stream stream;
  const kernels::PinnedBuffer fresh(sizeof(StateWords));
  const StateWords none;
  std::memcpy(fresh.pointer(), &none, sizeof none);
  kernels::zero_bytes(residuals.pointer(), residuals.bytes(), stream.view());
  kernels::copy_bytes(words.pointer(), fresh.pointer(), sizeof none, stream.view());
  stream.synchronize();
}

}  // namespace

FeedbackState::FeedbackState(FeedbackCounts counts, Dtype dtype, Memory memory)
    : residuals_(owner_offset(counts, dtype) + counts.owned * dtype_bytes(dtype), memory),
      device_words_(memory == Memory::kDevice ? sizeof(StateWords) : 0, memory) {
  std::byte* first = residuals_.pointer();
  state_.residual = {first, counts.encoded, dtype, memory};
  state_.owner_residual = {first + owner_offset(counts, dtype), counts.owned, dtype, memory};
  state_.words = &words_;
  if (memory == Memory::kHost) {
    if (residuals_.bytes() != 0) std::memset(first, 0, residuals_.bytes());
    return;
  }
  state_.words = reinterpret_cast<StateWords*>(device_words_.pointer());
  clear_on_device(residuals_, device_words_);
}

FeedbackState::FeedbackState(const ValueSpan& residual, const ValueSpan& owner, StateWords* words)
    : state_{.residual = residual, .owner_residual = owner, .words = words} {}

}  // namespace tersor::python
