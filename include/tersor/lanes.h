// Deprecated: include <tersor/accumulators.h>.
#pragma once

#include <tersor/accumulators.h>

namespace tersor {

/// The former name of AccumulatorFormat.
using LaneFormat [[deprecated("use AccumulatorFormat")]] = AccumulatorFormat;

}  // namespace tersor
