// Errors that were asked for, by PTX_DEVICE_FAIL or by a test: the n-th call of a function fails.
//
//   asked     clause[;clause]…      clause    function:which=error[!]
//   function  a name of the API; `any` is each that can fail
//   which     n: the n-th call from now on; n+: all from the n-th on; *: all
//   error     a number of cudaError_t; ! breaks the device, whichever error it is
//
// An error that leaves a real device's context broken breaks the device by itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace ptx {

struct Injected {
  cudaError_t error = cudaSuccess;
  bool breaks_device = false;
};

/// Counts a call, and says whether it fails.
Injected count_call(const char* function);

/// In place of what was asked before, but for PTX_DEVICE_FAIL. False: not understood.
bool ask_for_errors(const std::string& asked);
/// Calls so far; of all functions, where it is "any".
std::size_t calls_of(const std::string& function);
/// The function that an error was injected into last; "": none, since some were asked for.
const char* last_injected();

}  // namespace ptx
