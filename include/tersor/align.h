// Rounds to multiples. Payload sections start at multiples of 16 bytes, chunks at multiples of 512
// values.
#pragma once

#include <cstddef>

namespace tersor {

/// Rounds `value` up to a multiple of `step`, at least 1.
constexpr std::size_t align_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

/// Rounds `value` down to a multiple of `step`, at least 1.
constexpr std::size_t align_down(std::size_t value, std::size_t step) {
  return value / step * step;
}

/// Returns the number of pieces of size `step`, at least 1, needed to cover `value`.
constexpr std::size_t ceil_div(std::size_t value, std::size_t step) {
  return value / step + (value % step != 0);
}

}  // namespace tersor
