// Inlines calls of device functions: the statements of the function replace each call. Parameters
// become variables of the caller in local memory.
#pragma once

#include "tests/ptx_device/ptx/module.h"

namespace ptx {

/// Returns the kernel with all calls inlined. Throws Unsupported for recursion and for indirect
/// calls.
Function inline_calls(const Module& module, const Function& kernel);

}  // namespace ptx
