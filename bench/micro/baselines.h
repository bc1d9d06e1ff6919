// Plain loops over memory: a read, a read with a partial write, a copy and an in-place triad. They
// run at the full speed of this machine, with the best instruction set, even if codecs were forced
// to another set.
#pragma once

#include <tersor/threads.h>

#include <string_view>
#include <vector>

#include "bench/micro/machine.h"

namespace tersor::bench {

inline constexpr std::string_view kReadLoop = "read";  ///< loads the input
inline constexpr std::string_view kShareLoop =
    "share";  ///< loads the input, streams `written` bytes
inline constexpr std::string_view kCopyLoop = "memcpy";  ///< reads and writes half of `bytes` each
inline constexpr std::string_view kTriadLoop = "triad";  ///< d = a * x + d on f32, in place

/// The loops of the work's access, on all threads. The input must outlive the calls.
std::vector<TimedCall> memory_loops(const MemoryWork& work, Threads& threads);

}  // namespace tersor::bench
