// Kernels that belong to no codec. One advances a state's step. Others write progress counters to
// pinned memory, so the host can read a device's progress without a CUDA query. A query would end a
// stream's capture, and the counters also count replays of graphs.
#pragma once

#include <tersor/codec.h>
#include <tersor/span.h>
#include <tersor/stream.h>

#include <chrono>
#include <cstdint>

namespace tersor::kernels {

/// Progress counters, written by the kernels below and initially zero.
struct ProgressWords {
  std::uint64_t begun = 0;       ///< brackets begun
  std::uint64_t ended = 0;       ///< brackets ended
  std::uint64_t signals = 0;     ///< signals sent to the host
  std::uint32_t timeout_ms = 0;  ///< timeout of the latest bracket
  std::uint32_t name = 0;        ///< number of the latest operation's name
};

/// Returns a copy of the words while a device may write them. The copy of `begun` is at least as
/// new as the copy of `ended`.
ProgressWords read_progress(const ProgressWords& words);

/// Queue an increment of `begun`, `ended` or `signals`. mark_begun also writes timeout and name.
void mark_begun(ProgressWords* words, std::chrono::milliseconds timeout, std::uint32_t name,
                StreamView stream);
void mark_ended(ProgressWords* words, StreamView stream);
void mark_signal(ProgressWords* words, StreamView stream);

/// Queues a fill with one bits. The size must be a multiple of 16 bytes. Afterwards the memory is
/// no valid frame, and all values are NaN.
void spoil(ByteSpan memory, StreamView stream);

/// Queues an increment of the step, after all calls of an exchange that read the step. Also queues
/// a copy of the words' overflows to pinned memory, unless `overflows` is null.
void advance_step(StateWords* words, std::uint64_t* overflows, StreamView stream);

/// Queues a copy of words, with the gradient's factor of `gradient` (null: 1). The three may be the
/// same words.
void copy_words(const StateWords* from, const StateWords* gradient, StateWords* to,
                StreamView stream);

/// Queues *sum += the sum of squares of f32, bf16 or f16 values, in f64. `sum` is in device memory.
void add_squares(ConstValueSpan values, double* sum, StreamView stream);

/// Returns the address of a kernel for the CUDA runtime. A process uses the address to check
/// whether its device can run any kernel of this build.
const void* any_kernel();

}  // namespace tersor::kernels
