// Which of Highway's instruction sets a call runs on: the one that <tersor/isa.h> says. Highway's
// own choice is left alone, so a process that uses Highway for something else never notices.
//
//   HWY_EXPORT(encode);                       // once per file, under #if HWY_ONCE
//   TERSOR_DISPATCH(encode)(arguments);
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
