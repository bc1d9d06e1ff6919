// See useful_bytes.h.

#include "bench/useful_bytes.h"

#include <algorithm>

namespace tersor::bench {

std::size_t touched_bytes(ConstByteSpan values, std::size_t line_bytes) {
  std::size_t touched = 0;
  for (std::size_t first = 0; first < values.size(); first += line_bytes) {
    const ConstByteSpan line = values.subspan(first, std::min(line_bytes, values.size() - first));
    if (std::ranges::any_of(line, [](std::byte byte) { return byte != std::byte{}; }))
      touched += line.size();
  }
  return touched;
}

}  // namespace tersor::bench
