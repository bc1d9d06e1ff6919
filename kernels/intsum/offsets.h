// The offset of a segment's raw values among the values of all segments.
#pragma once

#include <tersor/codecs/intsum.h>

#include <cstddef>

namespace tersor::kernels {

/// The number of values in both rounds, for all earlier segments or for a single segment.
struct IntsumOffset {
  std::size_t maxima = 0;
  std::size_t codes = 0;

  static IntsumOffset of(std::size_t count, AccumulatorBits accumulator_bits) {
    const IntsumLayout layout{count, accumulator_bits};
    return {layout.maxima(), layout.codes()};
  }
  IntsumOffset& operator+=(const IntsumOffset& other) {
    maxima += other.maxima;
    codes += other.codes;
    return *this;
  }
};

}  // namespace tersor::kernels
