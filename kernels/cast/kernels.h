// What codecs call of a cast format, whose values travel as values ("wire" type): on hosts with
// ranges, on one thread; on devices with whole calls. Pointers need only their element's alignment.
// Results are rounded to nearest even, or where the format has it stochastically; NaN becomes
// 0x7fff (f32: 0x7fc00000), except where nothing is computed and `none` copies bits.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/host/arguments.h"

#include <tersor/codec.h>

#include <cstddef>
#include <span>

namespace tersor::kernels {

/// Where values travel: in a frame, as the format's wire type; or bare, as its `Bare`.
enum class Travel : std::uint8_t { kFramed, kBare };

/// Where values are written that travel.
struct CastOutput {
  void* values;  // as many as are sent
  Store store = Store::kCached;
  StreamedWords* words = nullptr;  // of the values; null: no sum
};

/// p as values that travel; the residual is p - decoded, and stays what it was where that is not
/// finite.
struct CastEncode {
  Sent sent;
  CastOutput output;
  Travel travel = Travel::kFramed;  // bare: without a residual
  float factor = 1;  // without a residual, p · factor is written (a mean); in place if need be
  Noise noise = {};  // to nearest where there is a factor
};

/// The sum of the payloads, times `factor`, in order, in f32 and rounded once: the first is
/// value · factor (adding: fma onto the output), each other one is fma(value, factor, sum).
struct CastDecode {
  std::span<const void* const> payloads;  // each `count` values of the type that they travel as
  std::size_t count;
  Decoded to;
  Travel travel = Travel::kFramed;
};

/// The sum of the payloads, times `factor`, in order from +0 by fma(value, factor, sum), plus
/// residual_factor · residual, as wire values.
struct CastReduce {
  std::span<const void* const> payloads;
  Dtype dtype;  // of the gradient, which says the wire's
  std::size_t count;
  float factor = 1;
  ErrorFeedback feedback;
  CastOutput output;
  Noise noise = {};
};

/// The loops of a format for one instruction set. Encode and reduce return how many finite values
/// became infinite as f16.
struct CastLoops {
  std::size_t (*encode)(const CastEncode&);
  void (*decode)(const CastDecode&);
  std::size_t (*reduce)(const CastReduce&);
};

/// Those of the instruction set that this call is to run on.
template <class Format>
CastLoops cast_loops();

/// Queued on the call's stream; the call was checked.
template <class Format>
void cast_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame);
/// Bare values, times `factor`, rounded to nearest; in the gradient's own memory if need be.
template <class Format>
void cast_device_encode_native(const EncodeCall& call, float factor, ValueSpan values);
/// Frames whose header is not `expected` make the outputs NaN.
template <class Format>
void cast_device_decode(const DecodeCall& call, const FrameHeader& expected);
/// Bare values that came back.
template <class Format>
void cast_device_decode_native(const DecodeCall& call, ConstValueSpan values);
/// Frames whose header is not `expected` make all values of the one that is written NaN.
template <class Format>
void cast_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame);

}  // namespace tersor::kernels
