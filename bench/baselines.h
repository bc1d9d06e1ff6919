// Baselines for codecs: a read, a read with a partial write, a copy and an in-place triad. They run
// at the full speed of this machine, with the best instruction set, even if codecs were forced to
// another set.
#pragma once

#include <tersor/span.h>
#include <tersor/threads.h>

#include <cstddef>

#include "bench/machine.h"

namespace tersor::bench {

/// "read": loads `bytes`. The bytes must outlive the call.
TimedCall read_baseline(ConstByteSpan bytes, Threads& threads);

/// "share": loads `bytes`, which must outlive the call, and streams `written` bytes past the
/// caches: an encode without arithmetic.
TimedCall share_baseline(ConstByteSpan bytes, std::size_t written, Threads& threads);

/// "memcpy": reads and writes `moved_bytes` in total, half of them each.
TimedCall copy_baseline(std::size_t moved_bytes, Threads& threads);

/// "triad": d = a * x + d on f32, in place. Reads 8 bytes and writes 4 bytes per value,
/// `moved_bytes` in total.
TimedCall triad_baseline(std::size_t moved_bytes, Threads& threads);

}  // namespace tersor::bench
