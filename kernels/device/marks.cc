// The host part of marks.h. Builds without CUDA throw in all other functions.
#include "kernels/device/marks.h"

#include "kernels/device/device.h"

namespace tersor::kernels {
namespace {

template <typename T>
T load_acquire(const T& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

}  // namespace

ProgressWords read_progress(const ProgressWords& words) {
  ProgressWords copy;
  copy.ended = load_acquire(words.ended);
  copy.begun = load_acquire(words.begun);
  copy.signals = load_acquire(words.signals);
  copy.timeout_ms = load_acquire(words.timeout_ms);
  copy.name = load_acquire(words.name);
  return copy;
}

#if !TERSOR_HAS_CUDA
void mark_begun(ProgressWords*, std::chrono::milliseconds, std::uint32_t, StreamView) {
  require_device();
}
void mark_ended(ProgressWords*, StreamView) { require_device(); }
void mark_signal(ProgressWords*, StreamView) { require_device(); }
void spoil(ByteSpan, StreamView) { require_device(); }
void advance_step(StateWords*, std::uint64_t*, StreamView) { require_device(); }
void copy_words(const StateWords*, const StateWords*, StateWords*, StreamView) { require_device(); }
void add_squares(ConstValueSpan, double*, StreamView) { require_device(); }
#endif

}  // namespace tersor::kernels
