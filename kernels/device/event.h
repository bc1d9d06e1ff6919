// Events: order between streams. Work queued after an event waits for the work queued before.
#pragma once

#include <tersor/stream.h>

#include <utility>

namespace tersor::kernels {

/// A `cudaEvent_t` of the current device, without timing. Move-only. No member waits on the host.
class Event {
 public:
  /// Throws CudaError if the machine has no device or this build has no CUDA.
  Event();
  ~Event();
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Marks all work queued on the stream up to now.
  void record(StreamView stream);
  /// Makes all work queued on the stream from now on wait for the marked work.
  void hold(StreamView stream) const;
  /// True if the marked work is done. Do not call while a stream is captured: a query would end the
  /// capture.
  bool done() const;

 private:
  void* handle_ = nullptr;
};

/// Makes all work queued on `later` from now on wait for all work queued on `earlier` up to now.
/// Uses `event`. Both streams must exist and belong to the current thread's device. Equal handles
/// name the same stream and need no ordering.
inline void order(StreamView earlier, StreamView later, Event& event) {
  if (earlier.handle == later.handle) return;
  event.record(earlier);
  event.hold(later);
}

}  // namespace tersor::kernels
