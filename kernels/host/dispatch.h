// Runs a call on the instruction set selected by <tersor/isa.h>. Highway's own choice is not
// changed. Therefore other users of Highway in the process are not affected.
//
//   TERSOR_DISPATCHED(void, encode, (const Encode& arguments), (arguments))  // under #if HWY_ONCE
#pragma once

#include "kernels/host/targets.h"

#include <hwy/highway.h>

#include <cstddef>

namespace tersor::kernels {

/// Returns the index of the current instruction set in the tables of HWY_EXPORT. Throws
/// InvalidArgumentError if TERSOR_ISA names an unavailable instruction set.
std::size_t dispatch_index();

}  // namespace tersor::kernels

#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define TERSOR_DISPATCH(function) HWY_STATIC_DISPATCH(function)
#else
#define TERSOR_DISPATCH(function) \
  (*(HWY_DISPATCH_TABLE(function)[::tersor::kernels::dispatch_index()]))
#endif

/// Defines a function that calls function_on. One function_on exists per instruction set.
#define TERSOR_DISPATCHED(result, function, parameters, arguments) \
  HWY_EXPORT(function##_on);                                       \
  result function parameters { return TERSOR_DISPATCH(function##_on) arguments; }
