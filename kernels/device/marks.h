// Kernels of no codec: a state's step, and words in pinned memory by which a device says how far it
// has come, so that the host sees it without asking CUDA: a query would end a stream's capture, and
// replays of graphs count too.
#pragma once

#include <tersor/codec.h>
#include <tersor/span.h>
#include <tersor/stream.h>

#include <chrono>
#include <cstdint>

namespace tersor::kernels {

/// Written by the kernels below; zeros at first.
struct ProgressWords {
  std::uint64_t begun = 0;       ///< brackets
  std::uint64_t ended = 0;       ///< of these
  std::uint64_t signals = 0;     ///< that the host waits for
  std::uint32_t timeout_ms = 0;  ///< of the bracket that began last
  std::uint32_t name = 0;        ///< the number of its operation's name
};

/// A copy of the words, taken while a device may write them: `begun` is not older than the rest.
ProgressWords read_progress(const ProgressWords& words);

/// Queue begun + 1, with what is known of the bracket; ended + 1; signals + 1.
void mark_begun(ProgressWords* words, std::chrono::milliseconds timeout, std::uint32_t name,
                StreamView stream);
void mark_ended(ProgressWords* words, StreamView stream);
void mark_signal(ProgressWords* words, StreamView stream);

/// Queues ones for all bits of memory, a multiple of 16 bytes: then it holds no frame, and as
/// values NaN.
void spoil(ByteSpan memory, StreamView stream);

/// Queues step + 1, once all calls of an exchange are queued that read the step, and a copy of the
/// words' overflows in pinned memory; null: none.
void advance_step(StateWords* words, std::uint64_t* overflows, StreamView stream);

/// Queues *sum += the squares of f32, bf16 or f16 values, in f64; `sum` lies on the device.
void add_squares(ConstValueSpan values, double* sum, StreamView stream);

/// A kernel's address, as the CUDA runtime wants it: by it a process finds out whether its device
/// can run any.
const void* any_kernel();

}  // namespace tersor::kernels
