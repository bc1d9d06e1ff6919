// Functions for creating, destroying, synchronizing and querying streams.
#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/queue.h"

using namespace ptx;

namespace {

cudaError_t end(cudaStream_t stream) {
  if (is_null(stream) || !is_known(stream)) return done(cudaErrorInvalidResourceHandle);
  remove_stream(stream_of(stream));
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  PTX_API;
  *stream = add_stream(flags);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  PTX_API;
  *stream = add_stream(flags);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  PTX_API;
  *stream = add_stream(cudaStreamDefault);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) { PTX_API_ENDS(end(stream)); }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  PTX_API;
  if (!is_known(stream)) return done(cudaErrorInvalidResourceHandle);
  PTX_UNSAFE;
  return done(synchronize(stream_of(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  PTX_API;
  if (!is_known(stream)) return done(cudaErrorInvalidResourceHandle);
  PTX_UNSAFE;
  return done(stream_of(stream)->idle() ? sticky() : cudaErrorNotReady);
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  PTX_API;
  if (!is_known(stream)) return done(cudaErrorInvalidResourceHandle);
  *device = stream_of(stream)->device;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  PTX_API_ALWAYS;
  *flags = is_null(stream) || stream_of(stream)->blocks ? 0 : cudaStreamNonBlocking;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
  PTX_API_ALWAYS;
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  PTX_API;
  return done(queue(stream, [=] { function(data); }));
}

}  // extern "C"
