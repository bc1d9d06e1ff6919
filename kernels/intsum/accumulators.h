// Integer codes of a given scale in 8-bit, 16-bit or 32-bit accumulators: the loops of
// <tersor/accumulators.h>. Callers have validated the arguments. Accumulators need only byte
// alignment. Encode reads 4 bytes and writes 1, 2 or 4 bytes per value.
#pragma once

#include "kernels/host/arguments.h"

#include <tersor/accumulators.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// Counts of exceptional values.
struct EncodingCounts {
  std::size_t clamped = 0;     // values clamped to the largest code
  std::size_t not_finite = 0;  // values without a meaningful code
};
EncodingCounts accumulators_encode(const float* values, std::size_t count,
                                   const AccumulatorFormat& format, const Noise& noise,
                                   std::byte* accumulators);

void accumulators_decode(const std::byte* accumulators, std::size_t count,
                         const AccumulatorFormat& format, float* values);

/// kAdd: sums = sums + others. kSubtract: sums = sums - others. Both wrap around.
enum class AccumulatorOperation : std::uint8_t { kAdd, kSubtract };
void accumulators_combine(std::byte* sums, const std::byte* others, std::size_t count,
                          unsigned accumulator_bits, AccumulatorOperation operation);

}  // namespace tersor::kernels
