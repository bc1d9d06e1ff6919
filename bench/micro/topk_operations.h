// Operations of top-k only.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace tersor {
class Codec;
class PlannedCodec;
}  // namespace tersor

namespace tersor::bench {

class CodecOperation;
struct OperationInput;

/// Encode of values of nearly equal magnitude: no threshold is found by sampling, and only digits
/// determine the k-th value.
inline constexpr std::string_view kFeedbackFarMiss = "encode_feedback_far_miss";
/// std::nth_element over the indices on one thread. The reference is the codec's encode on one
/// thread.
inline constexpr std::string_view kSelectReference = "encode_nth_element";

/// True if top-k sends the selected values as f32.
bool sends_f32(const Codec& codec);
/// The number of values that top-k sends.
std::size_t selected_of(const PlannedCodec& codec);

/// True if the codec is top-k with enough values for a sampled threshold.
bool has_far_miss(const PlannedCodec& codec);
/// True if the codec is top-k with the values of an f32 gradient.
bool has_select_reference(const PlannedCodec& codec);
std::unique_ptr<CodecOperation> make_select_reference(const OperationInput& input);

}  // namespace tersor::bench
