// Rounding up to a multiple: payload sections lie at multiples of 16 bytes, chunks at multiples of
// 512 values.
#pragma once

#include <cstddef>

namespace tersor {

/// The smallest multiple of `step` that is not below `value`. `step` is at least 1.
constexpr std::size_t align_up(std::size_t value, std::size_t step) {
  return (value + step - 1) / step * step;
}

/// The largest multiple of `step` that is not above `value`. `step` is at least 1.
constexpr std::size_t align_down(std::size_t value, std::size_t step) {
  return value / step * step;
}

/// How many pieces of `step` cover `value`.
constexpr std::size_t ceil_div(std::size_t value, std::size_t step) {
  return value / step + (value % step != 0);
}

}  // namespace tersor
