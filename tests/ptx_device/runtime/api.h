// What every function of the API passes at its beginning and end: the log, errors that were asked
// for, the error that broke the device, the error that the thread remembers, and the thread's
// device.
#pragma once

#include <cuda_runtime_api.h>

namespace ptx {

/// When a function does its work.
enum class When { kDeviceWorks, kAlways };

/// The beginning of a call of the function `name`; cudaSuccess: it may do its work.
cudaError_t enter(const char* name, When when);

/// The end of a call: cudaGetLastError will say its error, "not ready" too.
cudaError_t done(cudaError_t status);
cudaError_t last_error();
void forget_last_error();

/// What broke the device for good; cudaSuccess: nothing did.
cudaError_t sticky();
void break_device(cudaError_t error);

/// Of this thread.
int& current_device();

}  // namespace ptx

/// A function that a broken device refuses begins so, any other with PTX_API_ALWAYS.
#define PTX_API_BEGIN(when)                                                             \
  if (const cudaError_t refused = ::ptx::enter(__func__, when); refused != cudaSuccess) \
  return refused
#define PTX_API PTX_API_BEGIN(::ptx::When::kDeviceWorks)
#define PTX_API_ALWAYS PTX_API_BEGIN(::ptx::When::kAlways)

/// A function that ends something ends it in any case: an error that was asked for is returned
/// afterwards, as CUDA returns errors of earlier calls there.
#define PTX_API_ENDS(expression)                                           \
  const cudaError_t before = ::ptx::enter(__func__, ::ptx::When::kAlways); \
  const cudaError_t ended = expression;                                    \
  return before != cudaSuccess ? before : ended

/// A function that no capture allows, as it waits or allocates.
#define PTX_UNSAFE \
  if (::ptx::is_forbidden()) return ::ptx::done(cudaErrorStreamCaptureUnsupported)
