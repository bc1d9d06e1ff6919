// CUDA streams: a view of the caller's, and an owner. Host calls leave the view at its default.
#pragma once

#include <utility>

namespace tersor {

/// A `cudaStream_t` as an opaque pointer, so that no public header needs CUDA's. Owns nothing.
/// Null is the legacy default stream.
struct StreamView {
  void* handle = nullptr;
};

/// A stream of the current device that does not wait for the legacy default stream. Move only.
/// Keep it until the work that you queued on it is done; the library queues nothing on it unless
/// you pass it to a call.
class Stream {
 public:
  /// Throws CudaError where there is no device, or this build has no CUDA.
  Stream();
  ~Stream();
  Stream(Stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  StreamView view() const { return {handle_}; }

  /// Waits until all that was queued is done. Throws CudaError where something of it failed.
  void synchronize() const;

 private:
  void* handle_ = nullptr;
};

}  // namespace tersor
