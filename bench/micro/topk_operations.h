// Operations of top-k only.
#pragma once

#include <cstddef>

#include "bench/micro/machine.h"

namespace tersor {
class Codec;
}  // namespace tersor

namespace tersor::bench {

/// True if top-k sends the selected values as f32.
bool sends_f32(const Codec& codec);
/// The number of values that top-k sends.
std::size_t selected_of(const PlannedCodec& codec);

/// True if the codec is top-k with enough values for a sampled threshold.
bool has_far_miss(const PlannedCodec& codec);
/// std::nth_element over the indices on one thread. The reference is the codec's encode on one
/// thread.
OperationKind select_reference();

}  // namespace tersor::bench
