// Deprecated: include <tersor/accumulators.h>.
#pragma once

#include <tersor/accumulators.h>

namespace tersor {

using LaneFormat [[deprecated("use AccumulatorFormat")]] = AccumulatorFormat;

}  // namespace tersor
