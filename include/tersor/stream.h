// CUDA streams: a view of the caller's stream, and an owner. Leave the view at its default in calls
// on host memory.
#pragma once

#include <utility>

namespace tersor {

/// An opaque `cudaStream_t`; public headers do not include CUDA headers. Owns nothing. Null is the
/// legacy default stream.
struct StreamView {
  void* handle = nullptr;  ///< the `cudaStream_t`
};

/// A stream of the current device. The stream does not wait for the legacy default stream. Move
/// only. Keep the stream until its queued work is done. The library queues work on the stream only
/// if a call receives the view.
class Stream {
 public:
  /// Throws CudaError if there is no device, or if this build has no CUDA.
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  /// Returns a view of this stream.
  StreamView view() const { return {handle_}; }

  /// Blocks until all queued work is done. Throws CudaError if queued work failed.
  void synchronize() const;

 private:
  void* handle_ = nullptr;
};

}  // namespace tersor
