// What codecs are held against: a read, a read of which a share is written, a copy and an in-place
// triad, as fast as this machine does them, on the best instruction set whatever the codecs were
// forced to.
#pragma once

#include <tersor/span.h>
#include <tersor/threads.h>

#include <cstddef>

#include "bench/machine.h"

namespace tersor::bench {

/// "read": loads `bytes`, which outlive it.
TimedCall read_baseline(ConstByteSpan bytes, Threads& threads);

/// "share": loads `bytes`, which outlive it, and writes `written` bytes past the caches as it goes:
/// what is left of an encode without its arithmetic.
TimedCall share_baseline(ConstByteSpan bytes, std::size_t written, Threads& threads);

/// "memcpy": reads and writes `moved_bytes` together, half of them each.
TimedCall copy_baseline(std::size_t moved_bytes, Threads& threads);

/// "triad": d = a * x + d on f32, in place: reads 8 and writes 4 bytes a value, `moved_bytes`
/// together.
TimedCall triad_baseline(std::size_t moved_bytes, Threads& threads);

}  // namespace tersor::bench
