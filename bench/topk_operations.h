// What only top-k has to show: its speed where the sampled threshold misses, and what a plain
// selection by the standard library takes for the same payload.
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

/// Whether top-k sends the values that it keeps as f32.
bool sends_f32(const Codec& codec);

/// Whether a codec, as planned, has one of these: top-k alone, of enough values that a threshold is
/// sampled; the reference only for f32.
bool has_topk_operation(std::string_view name, const PlannedCodec& codec);

/// Encode with feedback where the threshold is made to miss calls the kernel, which alone can be
/// forced. miss: it lies too high, so candidates are gathered once more; overflow: too low, so that
/// they do not fit; far miss: the k-th value is found by its digits.
/// The reference is std::nth_element over the indices on one thread, which yields the same payload
/// (checked, byte by byte). Its baseline is the codec's encode on one thread. For values of f32.
/// Throws InvalidArgument for other names.
std::unique_ptr<CodecOperation> make_topk_operation(std::string_view name,
                                                    const OperationInput& input);

}  // namespace tersor::bench
