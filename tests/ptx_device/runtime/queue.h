// How the API's functions find a stream and queue work on it: which streams there are, the default
// streams, and what a capture forbids.
#pragma once

#include "tests/ptx_device/runtime/device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace ptx {

cudaStream_t add_stream(unsigned flags);
/// What is queued will be done.
void remove_stream(Stream* stream);
std::size_t live_streams();

/// cudaStreamLegacy and null are the same; cudaStreamPerThread is not known here.
bool is_null(cudaStream_t stream);
Stream* stream_of(cudaStream_t stream);
bool is_known(cudaStream_t stream);
bool is_captured(cudaStream_t stream);

/// Legacy: the default stream waits for all that block on it, and they for it. `waits`: see Node.
cudaError_t queue(cudaStream_t handle, std::function<void()> work, bool waits = false);
cudaError_t synchronize(Stream* stream);

}  // namespace ptx
