// Queues the API's work on streams: lookup of streams, default streams, and restrictions during
// captures.
#pragma once

#include "tests/ptx_device/runtime/device.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

namespace ptx {

cudaStream_t add_stream(unsigned flags);
/// Queued work is still executed.
void remove_stream(Stream* stream);
std::size_t live_streams();

/// cudaStreamLegacy equals null. cudaStreamPerThread names a stream of the calling thread.
bool is_null(cudaStream_t stream);
Stream* stream_of(cudaStream_t stream);
bool is_known(cudaStream_t stream);
bool is_captured(cudaStream_t stream);

/// The legacy default stream waits for all blocking streams, and blocking streams wait for the
/// default stream. `waits`: see Node.
cudaError_t queue(cudaStream_t handle, std::function<void()> work, bool waits = false);
cudaError_t synchronize(Stream* stream);

}  // namespace ptx
