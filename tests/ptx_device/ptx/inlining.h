// Calls of functions on the device: the function's statements stand in the place of each call, as a
// compiler would inline them. Parameters are variables of the caller, in local memory.
#pragma once

#include "tests/ptx_device/ptx/module.h"

namespace ptx {

/// The kernel with all that it calls. Throws Unsupported where a function calls itself, or is
/// called by its address.
Function inline_calls(const Module& module, const Function& kernel);

}  // namespace ptx
