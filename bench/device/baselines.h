// What operations on a device are held against: a copy, a read and a memset of as many bytes, on
// buffers that are no longer in the cache when their turn comes again.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/device/gpu.h"

namespace tersor::bench {

/// One thing that is timed in turns with others, by what it queues.
struct TimedCall {
  std::string name;
  std::function<void()> queue;
  std::size_t calls = 0;         ///< of one sample; 0: as many as take a few milliseconds
  std::size_t calls_inside = 1;  ///< that one `queue` stands for
};

enum class WithMemset : std::uint8_t { kNo, kYes };

/// "copy" (reads and writes `bytes` together, half of them each, by cudaMemcpyAsync), "read" and,
/// where asked for, "memset".
std::vector<TimedCall> memory_baselines(const Gpu& gpu, StreamView stream, std::size_t bytes,
                                        WithMemset with_memset);

/// "empty kernel"
TimedCall empty_kernel(StreamView stream);

/// The median seconds a call of each, over `repetitions` rounds in which each has one turn.
std::vector<double> time_in_turns(StreamView stream, const std::vector<TimedCall>& calls,
                                  int repetitions);

}  // namespace tersor::bench
