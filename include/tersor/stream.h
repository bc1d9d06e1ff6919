// A view of the caller's CUDA stream; host calls leave it at its default.
#pragma once

namespace tersor {

/// A `cudaStream_t` as an opaque pointer, so that no public header needs CUDA's. Owns nothing.
/// Null is the legacy default stream.
struct StreamView {
  void* handle = nullptr;
};

}  // namespace tersor
