// The operations of a codec, by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/micro/codec_operation.h"

namespace tersor::bench {

inline constexpr std::string_view kEncode = "encode";
inline constexpr std::string_view kFeedback = "encode_feedback";
inline constexpr std::string_view kDecode = "decode";
inline constexpr std::string_view kDecodeAdd = "decode_add";
inline constexpr std::string_view kReduce = "reduce";
/// All rounds of a codec without frames, as the only rank.
inline constexpr std::string_view kRawRounds = "raw_rounds";

/// The names for all machines, in the order of measurement.
std::vector<std::string> operation_names();

/// The operations of a codec on a machine, for `count` values of `dtype`.
std::vector<std::string> operations_of(const Machine& machine, const std::string& spec,
                                       std::size_t count, Dtype dtype);

/// Throws InvalidArgumentError for an unknown operation of the machine.
std::unique_ptr<CodecOperation> make_operation(std::string_view name, const OperationInput& input);

}  // namespace tersor::bench
