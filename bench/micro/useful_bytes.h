// The minimum number of bytes read and written by an operation, for reported speeds. Extra traffic
// of a slower implementation does not count.
#pragma once

#include <tersor/span.h>

#include <algorithm>
#include <cstddef>

namespace tersor::bench {

/// Reads the gradient, writes the payload.
constexpr std::size_t encode_bytes(std::size_t gradient, std::size_t payload) {
  return gradient + payload;
}

/// Reads gradient and residual, writes residual and payload, in one pass.
constexpr std::size_t feedback_bytes(std::size_t gradient, std::size_t residual,
                                     std::size_t payload) {
  return gradient + 2 * residual + payload;
}

/// Reads the payload, writes all values.
constexpr std::size_t decode_bytes(std::size_t values, std::size_t payload) {
  return payload + values;
}

/// Reads the payload, reads and writes the touched values.
constexpr std::size_t decode_add_bytes(std::size_t touched, std::size_t payload) {
  return payload + 2 * touched;
}

/// Reads `frames` payloads and the owner's residual, writes residual and one payload.
constexpr std::size_t reduce_bytes(std::size_t frames, std::size_t residual, std::size_t payload) {
  return frames * payload + 2 * residual + payload;
}

/// Bytes of all lines with a nonzero byte: the minimum traffic to add these values. A line is a
/// cache line or a device memory's smallest unit. Host memory.
inline std::size_t touched_bytes(ConstByteSpan values, std::size_t line_bytes) {
  std::size_t touched = 0;
  for (std::size_t first = 0; first < values.size(); first += line_bytes) {
    const ConstByteSpan line = values.subspan(first, std::min(line_bytes, values.size() - first));
    if (std::ranges::any_of(line, [](std::byte byte) { return byte != std::byte{}; }))
      touched += line.size();
  }
  return touched;
}

}  // namespace tersor::bench
