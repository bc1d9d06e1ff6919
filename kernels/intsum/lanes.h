// Codes to a scale that is given, in lanes: the loops behind <tersor/lanes.h>, whose arguments were
// checked. Lanes need only a byte's alignment. Bytes a value: encode 4 read and 1, 2 or 4 written.
#pragma once

#include "kernels/host/arguments.h"

#include <tersor/lanes.h>

#include <cstddef>
#include <cstdint>

namespace tersor::kernels {

/// What was found among the values.
struct LanesFound {
  std::size_t cut = 0;         // to the largest code
  std::size_t not_finite = 0;  // whose codes are none
};
LanesFound lanes_encode(const float* values, std::size_t count, const LaneFormat& format,
                        const Noise& noise, std::byte* lanes);

void lanes_decode(const std::byte* lanes, std::size_t count, const LaneFormat& format,
                  float* values);

/// sums = sums + others, or less them. Both wrap around.
enum class LaneOperation : std::uint8_t { kAdd, kSubtract };
void lanes_combine(std::byte* sums, const std::byte* others, std::size_t count, unsigned lanes,
                   LaneOperation operation);

}  // namespace tersor::kernels
