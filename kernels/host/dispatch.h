// Which of Highway's instruction sets a call runs on: the one that <tersor/isa.h> says. Highway's
// own choice is left alone, so a process that uses Highway for something else never notices.
//
//   TERSOR_DISPATCHED(void, encode, (const Encode& arguments), (arguments))  // under #if HWY_ONCE
#pragma once

#include "kernels/host/targets.h"

#include <hwy/highway.h>

#include <cstddef>

namespace tersor::kernels {

/// The place of the current instruction set in the tables of HWY_EXPORT.
/// Throws InvalidArgument where TERSOR_ISA names one that is not available.
std::size_t dispatch_index();

}  // namespace tersor::kernels

#if (HWY_TARGETS & (HWY_TARGETS - 1)) == 0
#define TERSOR_DISPATCH(function) HWY_STATIC_DISPATCH(function)
#else
#define TERSOR_DISPATCH(function) \
  (*(HWY_DISPATCH_TABLE(function)[::tersor::kernels::dispatch_index()]))
#endif

/// Defines a function that calls function_on, of which there is one for each instruction set.
#define TERSOR_DISPATCHED(result, function, parameters, arguments) \
  HWY_EXPORT(function##_on);                                       \
  result function parameters { return TERSOR_DISPATCH(function##_on) arguments; }
