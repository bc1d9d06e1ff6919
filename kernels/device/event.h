// Order between streams: what is queued behind an event waits for what was queued before it.
#pragma once

#include <tersor/stream.h>

#include <utility>

namespace tersor::kernels {

/// A `cudaEvent_t` of the current device, without timing. Move only. Nothing here waits on the
/// host.
class Event {
 public:
  /// Throws CudaError where there is no device, or this build has no CUDA.
  Event();
  ~Event();
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Stands from now on for all that is queued on the stream so far.
  void record(StreamView stream);
  /// What is queued on the stream from now on comes after what the event stands for.
  void hold(StreamView stream) const;
  /// Whether that is done. Not while a stream is captured: a query would end the capture.
  bool done() const;

 private:
  void* handle_ = nullptr;
};

/// What is queued on `later` from now on comes after all that is queued on `earlier` so far, by
/// way of `event`. Both streams are alive, and here the current thread's: so one handle is one
/// stream, and nothing is to be done.
inline void order(StreamView earlier, StreamView later, Event& event) {
  if (earlier.handle == later.handle) return;
  event.record(earlier);
  event.hold(later);
}

}  // namespace tersor::kernels
