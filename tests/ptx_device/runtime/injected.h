// Injected errors, requested by PTX_DEVICE_FAIL or by a test: the n-th call of a function fails.
//
//   asked     clause[;clause]…      clause    function:which=error[!]
//   function  An API function. `any` matches every fallible function.
//   which     A number n selects the n-th call from now on. n+ selects all calls from the n-th on.
//             An asterisk selects all calls.
//   error     A cudaError_t number. ! makes any error break the device.
//
// Errors with permanent effect on a real device's context always break the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>

namespace ptx {

struct Injected {
  cudaError_t error = cudaSuccess;
  bool breaks_device = false;
};

/// Counts a call and returns the error to inject.
Injected count_call(const char* function);

/// Replaces earlier requests except PTX_DEVICE_FAIL. Returns false for invalid syntax.
bool ask_for_errors(const std::string& asked);
/// Number of calls so far; "any" counts all functions.
std::size_t calls_of(const std::string& function);
/// The function of the last injected error. Returns "" if no error was injected since the last
/// request.
const char* last_injected();

}  // namespace ptx
