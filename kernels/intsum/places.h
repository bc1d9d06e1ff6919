// Where a segment's bare values lie among those of all segments.
#pragma once

#include <tersor/codecs/intsum.h>

#include <cstddef>

namespace tersor::kernels {

/// Counts of both rounds: what the segments before take, or one segment alone.
struct IntsumPlace {
  std::size_t maxima = 0;
  std::size_t codes = 0;

  static IntsumPlace of(std::size_t count, IntsumLanes lanes) {
    const IntsumLayout layout{count, lanes};
    return {layout.maxima(), layout.codes()};
  }
  IntsumPlace& operator+=(const IntsumPlace& other) {
    maxima += other.maxima;
    codes += other.codes;
    return *this;
  }
};

}  // namespace tersor::kernels
