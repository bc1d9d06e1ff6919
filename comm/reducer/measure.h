// How far a codec's payload is from what it was given: for study, not for speed.
#pragma once

#include <tersor/codec.h>

namespace tersor {

/// |p − decoded| / |p| of one encode of p = gradient + residual (residual may be empty), without
/// touching any state. 0 where p is all zeros.
double relative_error(const Codec& codec, const Segment& segment, ConstValueSpan gradient,
                      ConstValueSpan residual);

}  // namespace tersor
