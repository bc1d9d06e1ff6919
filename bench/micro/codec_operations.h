// The operations of a codec.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/micro/codec_operation.h"

namespace tersor::bench {

/// The operations of codecs with frames on all machines, in the order of measurement.
std::span<const OperationKind> frame_operations();

/// All rounds of a codec without frames, as the only rank, on a CPU.
extern const OperationKind kRawRounds;

/// The operations of a codec on a machine, for `count` values of `dtype`.
std::vector<const OperationKind*> operations_of(const Machine& machine, const std::string& spec,
                                                std::size_t count, Dtype dtype);

std::unique_ptr<CodecOperation> make_encode(const OperationInput& input);

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
