// The operations of a codec, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/codec_operation.h"

namespace tersor::bench {

inline constexpr std::string_view kEncode = "encode";
inline constexpr std::string_view kFeedback = "encode+feedback";
inline constexpr std::string_view kDecode = "decode";
inline constexpr std::string_view kDecodeAdd = "decode-add";
inline constexpr std::string_view kReduce = "reduce";

/// Those of all machines, in the order in which they are measured.
std::vector<std::string> operation_names();

/// Those that a codec has on a machine, for `count` values of `dtype`.
std::vector<std::string> operations_of(const Machine& machine, const std::string& spec,
                                       std::size_t count, Dtype dtype);

/// Throws InvalidArgument where the machine has no such operation.
std::unique_ptr<CodecOperation> make_operation(std::string_view name, const OperationInput& input);

/// Where residuals are written: in place, or, so that each step is as hard as the first, elsewhere.
enum class Residuals : std::uint8_t { kInPlace, kElsewhere };

std::unique_ptr<CodecOperation> make_feedback_operation(const OperationInput& input,
                                                        Residuals residuals);

}  // namespace tersor::bench
