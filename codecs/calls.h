// From the words of a codec's call to those of its kernels: feedback, noise, where to store, and
// what an inactive segment does.
#pragma once

#include "codecs/slices.h"
#include "kernels/host/arguments.h"

#include <tersor/codec.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tersor::encoding {

/// The words that a call reads; kept apart from those that it writes, which may be the same.
template <typename Call>  // EncodeCall or ReduceCall
StateWords words_of(const Call& call) {
  if (call.words != nullptr) return *call.words;
  StateWords words;
  words.step = call.random.step;
  return words;
}

/// Writes the words of the next step, where they are asked for.
inline void write_words(StateWords words, std::uint64_t overflows, StateWords* out) {
  if (out == nullptr) return;
  ++words.step;
  words.overflows += overflows;
  *out = words;
}

/// Feedback of a slice; none where there are no states.
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

/// What a slice of a call sends.
template <typename Offset>
kernels::Sent sent_of(const EncodeCall& call, const SliceAt<Offset>& slice, const StateWords& words,
                      kernels::Store store) {
  const ConstValueSpan gradient = call.gradients[slice.segment].subspan(slice.first, slice.count);
  return {gradient.pointer(), gradient.dtype(), slice.count,
          feedback_of(call.states, slice, words, store)};
}

/// What becomes of a slice that is decoded.
template <typename Offset>
kernels::Decoded decoded_of(const DecodeCall& call, const SliceAt<Offset>& slice,
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

/// An inactive segment's residual goes on as it is.
inline void keep_residual(const kernels::ErrorFeedback& feedback, std::size_t count) {
  if (feedback.residual_in != feedback.residual_out)
    std::memcpy(feedback.residual_out, feedback.residual_in, count * dtype_bytes(feedback.dtype));
}

/// Calls that read and write at least so many bytes write past the caches. Measured on an AMD EPYC
/// with 32 MiB of L3 on two threads, encode and decode, past the caches against through them:
/// `none` of 4 MiB 0.11 and 0.17 against 0.12 and 0.07 ms, of 16 MiB 0.61 and 0.74 against 0.72 and
/// 0.64, of 64 MiB 4.2 and 4.3 against 5.1 and 5.4; int8 of 64 MiB (80 MiB in all) 3.0 against 3.8
/// (encode).
inline constexpr std::size_t kStreamingBytes = std::size_t{64} << 20;

inline kernels::Store store_for(std::size_t bytes) {
  return bytes >= kStreamingBytes ? kernels::Store::kStreaming : kernels::Store::kCached;
}

/// Bytes of all values of a list, or of all frames.
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

/// The dtype of a call's checked list; f32 where it is empty, as the checks have it.
template <typename Span>
Dtype dtype_of(std::span<Span> values) {
  return values.empty() ? Dtype::kF32 : values.front().dtype();
}

/// That of a call's gradient.
inline Dtype dtype_of(const EncodeCall& call) { return dtype_of(call.gradients); }
inline Dtype dtype_of(const DecodeCall& call) { return dtype_of(call.outputs); }
inline Dtype dtype_of(const ReduceCall& call) { return call.dtype; }

/// Values of all segments.
inline std::size_t values_of(std::span<const Segment> segments) {
  std::size_t count = 0;
  for (const Segment& segment : segments) count += segment.count;
  return count;
}

}  // namespace tersor::encoding
