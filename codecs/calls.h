// Converts the arguments of codec calls to the arguments of kernels: feedback, noise, stores, and
// inactive segments.
#pragma once

#include "codecs/slices.h"
#include "kernels/host/arguments.h"

#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tersor::encoding {

/// Returns a copy of a call's input words, because the output words may be the same.
template <typename Call>  // EncodeCall or ReduceCall
StateWords words_of(const Call& call) {
  if (call.words != nullptr) return *call.words;
  StateWords words;
  words.step = call.random.step;
  return words;
}

/// Writes the words of the next step if `out` is set.
inline void write_words(StateWords words, std::uint64_t overflows, StateWords* out) {
  if (out == nullptr) return;
  ++words.step;
  words.overflows += overflows;
  *out = words;
}

/// Returns the feedback of a slice; none if there are no states.
template <typename Offset>
kernels::ErrorFeedback feedback_of(std::span<const SegmentState> states,
                                   const SliceAt<Offset>& slice, const StateWords& words,
                                   kernels::Store store) {
  if (states.empty()) return {};
  const SegmentState& state = states[slice.segment];
  return {.residual_in = state.residual_in.subspan(slice.first, slice.count).pointer(),
          .residual_out = state.residual_out.subspan(slice.first, slice.count).pointer(),
          .dtype = state.residual_in.dtype(),
          .gradient_factor = words.gradient_factor,
          .residual_factor = words.residual_factor,
          .store = store};
}

/// Returns the input of a slice's encoder.
template <typename Offset>
kernels::EncodeInput sent_of(const EncodeCall& call, const SliceAt<Offset>& slice,
                             const StateWords& words, kernels::Store store) {
  const ConstValueSpan gradient = call.gradients[slice.segment].subspan(slice.first, slice.count);
  return {gradient.pointer(), gradient.dtype(), slice.count,
          feedback_of(call.states, slice, words, store)};
}

/// Returns the output of a slice's decoder.
template <typename Offset>
kernels::DecodeOutput decoded_of(const DecodeCall& call, const SliceAt<Offset>& slice,
                                 kernels::Store store) {
  const ValueSpan output = call.outputs[slice.segment].subspan(slice.first, slice.count);
  return {output.pointer(), output.dtype(), call.factor, call.mode, store};
}

inline kernels::Noise noise_of(Rounding rounding, const RandomSource& random,
                               const StateWords& words, const Segment& segment, std::size_t first) {
  return {.rounding = rounding,
          .key = random.key,
          .step = words.step,
          .parameter = segment.parameter,
          .first_index = segment.first_index + first};
}

inline bool is_active(const Segment& segment) {
  return segment.active == nullptr || *segment.active != 0;
}

/// An inactive segment keeps its residual.
inline void keep_residual(const kernels::ErrorFeedback& feedback, std::size_t count) {
  if (feedback.residual_in != feedback.residual_out)
    std::memcpy(feedback.residual_out, feedback.residual_in, count * dtype_bytes(feedback.dtype));
}

/// Calls that read and write at least this number of bytes bypass the caches. Measured on an AMD
/// EPYC with 32 MiB of L3 on two threads (ms, bypassing / cached):
///
///   codec, gradient              encode       decode
///   none,  4 MiB             0.11 / 0.12  0.17 / 0.07
///   none, 16 MiB             0.61 / 0.72  0.74 / 0.64
///   none, 64 MiB              4.2 / 5.1    4.3 / 5.4
///   int8, 64 MiB (80 MiB in all)  3.0 / 3.8
inline constexpr std::size_t kStreamingBytes = std::size_t{64} << 20;

inline kernels::Store store_for(std::size_t bytes) {
  return bytes >= kStreamingBytes ? kernels::Store::kStreaming : kernels::Store::kCached;
}

/// Returns the bytes of all values or frames of a list.
template <typename Span>
std::size_t bytes_of(std::span<Span> list) {
  std::size_t bytes = 0;
  for (const auto& span : list)
    if constexpr (requires { span.bytes(); })
      bytes += span.bytes();
    else
      bytes += span.size();
  return bytes;
}

/// Returns the dtype of a checked list; f32 for an empty list, as in the checks.
template <typename Span>
Dtype dtype_of(std::span<Span> values) {
  return values.empty() ? Dtype::kF32 : values.front().dtype();
}

/// Returns the gradient's dtype in a call.
inline Dtype dtype_of(const EncodeCall& call) { return dtype_of(call.gradients); }
inline Dtype dtype_of(const DecodeCall& call) { return dtype_of(call.outputs); }
inline Dtype dtype_of(const ReduceCall& call) { return call.dtype; }

/// Returns the number of values of all segments.
inline std::size_t values_of(std::span<const Segment> segments) {
  std::size_t count = 0;
  for (const Segment& segment : segments) count += segment.count;
  return count;
}

}  // namespace tersor::encoding
