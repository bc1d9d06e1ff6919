// Common begin and end of all API functions: the log, injected errors, the error of a broken
// device, the thread's last error, and the thread's device.
#pragma once

#include <cuda_runtime_api.h>

namespace ptx {

/// The condition for the work of a function.
enum class When { kDeviceWorks, kAlways };

/// Begins a call of the function `name`. The function may work if the result is cudaSuccess.
cudaError_t enter(const char* name, When when);

/// Ends a call and stores its status for cudaGetLastError, including cudaErrorNotReady.
cudaError_t done(cudaError_t status);
cudaError_t last_error();
void forget_last_error();

/// The error of a broken device, or cudaSuccess.
cudaError_t sticky();
void break_device(cudaError_t error);

/// The thread's current device.
int& current_device();

}  // namespace ptx

/// The begin of a function refused by a broken device. Other functions use PTX_API_ALWAYS.
#define PTX_API_BEGIN(when)                                                             \
  if (const cudaError_t refused = ::ptx::enter(__func__, when); refused != cudaSuccess) \
  return refused
#define PTX_API PTX_API_BEGIN(::ptx::When::kDeviceWorks)
#define PTX_API_ALWAYS PTX_API_BEGIN(::ptx::When::kAlways)

/// A function destroying an object destroys the object in any case. An injected error is returned
/// afterwards, like errors of earlier calls in CUDA.
#define PTX_API_ENDS(expression)                                           \
  const cudaError_t before = ::ptx::enter(__func__, ::ptx::When::kAlways); \
  const cudaError_t ended = expression;                                    \
  return before != cudaSuccess ? before : ended

/// Marks a function forbidden during captures, because the function waits or allocates.
#define PTX_UNSAFE \
  if (::ptx::is_forbidden()) return ::ptx::done(cudaErrorStreamCaptureUnsupported)
