// Operations of top-k only. Some measure the speed after a missed threshold. The reference is a
// plain selection by the standard library with the same payload.
#pragma once

#include <memory>
#include <string_view>

namespace tersor {
class Codec;
class PlannedCodec;
}  // namespace tersor

namespace tersor::bench {

class CodecOperation;
struct OperationInput;

inline constexpr std::string_view kFeedbackMiss = "encode+feedback, miss";
inline constexpr std::string_view kFeedbackOverflow = "encode+feedback, overflow";
inline constexpr std::string_view kFeedbackFarMiss = "encode+feedback, far miss";
inline constexpr std::string_view kSelectReference = "reference nth_element";

/// True if top-k sends the selected values as f32.
bool sends_f32(const Codec& codec);

/// True if the planned codec has the operation: only top-k with enough values for a sampled
/// threshold. The reference exists only for f32.
bool has_topk_operation(std::string_view name, const PlannedCodec& codec);

/// Makes an operation. Encode with feedback after a missed threshold calls the kernel directly,
/// because only the kernel accepts a forced threshold. "miss" uses a threshold above the right
/// value, so candidates are gathered again. "overflow" uses a threshold below the right value, so
/// candidates do not fit. "far miss" finds the k-th value by its digits. The reference is
/// std::nth_element over the indices on one thread, with the same payload (checked byte by byte).
/// The reference's baseline is the codec's encode on one thread, for f32 values. Throws
/// InvalidArgumentError for other names.
std::unique_ptr<CodecOperation> make_topk_operation(std::string_view name,
                                                    const OperationInput& input);

}  // namespace tersor::bench
