// What codecs are held against: a read, a copy and an in-place triad, as fast as this machine does
// them, on the best instruction set whatever the codecs were forced to.
#pragma once

#include <tersor/buffer.h>
#include <tersor/span.h>
#include <tersor/threads.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace tersor::bench {

/// One loop over memory, done again by each `run`.
class Baseline {
 public:
  virtual ~Baseline() = default;
  virtual std::string_view name() const = 0;
  virtual void run(Threads& threads) = 0;
};

/// "read": loads `bytes`, which outlive it.
std::unique_ptr<Baseline> read_baseline(ConstByteSpan bytes);

/// "memcpy": reads and writes `moved_bytes` together, half of them each.
std::unique_ptr<Baseline> copy_baseline(std::size_t moved_bytes);

/// "triad": d = a * x + d on f32, in place: reads 8 and writes 4 bytes a value, `moved_bytes`
/// together.
std::unique_ptr<Baseline> triad_baseline(std::size_t moved_bytes);

/// The sum modulo 2 of all whole words of `bytes`, so that the read is not optimised away.
std::uint64_t read_all(ConstByteSpan bytes);

/// values[i] += factor * addends[i], for the shorter of both.
void triad(float factor, std::span<const float> addends, std::span<float> values);

}  // namespace tersor::bench
