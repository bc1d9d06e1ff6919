// The entry points of a cast format, which sends values as values of a "wire" type. Host functions
// process ranges on one thread. Device functions process whole calls. Pointers need only the
// alignment of their element type. Results are rounded to nearest even, or stochastically if the
// format supports stochastic rounding. NaN becomes 0x7fff (f32: 0x7fc00000), unless `none` copies
// bits without computing.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/host/arguments.h"

#include <tersor/codec.h>

#include <cstddef>
#include <span>

namespace tersor::kernels {

/// How values are sent: kFramed in a frame as the format's wire type, kRaw as raw values of type
/// `Raw`.
enum class WireForm : std::uint8_t { kFramed, kRaw };

/// The output for values to send.
struct CastOutput {
  void* values;  // one per input value
  Store store = Store::kCached;
  StreamedWords* words = nullptr;  // checksum of the values; null: no checksum
};

/// Encodes p. The residual becomes p - decoded, or keeps its old value if the decoded value is not
/// finite.
struct CastEncode {
  EncodeInput sent;
  CastOutput output;
  WireForm wire_form = WireForm::kFramed;  // kRaw: without a residual
  float factor = 1;  // without a residual, p · factor is written (a mean); may be in place
  Noise noise = {};  // nearest rounding if factor is not 1
};

/// Decodes the sum of the payloads, in order, times `factor`, in f32, rounded once. The first
/// payload gives value · factor, or with DecodeMode::kAdd an fma onto the output. Each further
/// payload gives fma(value, factor, sum).
struct CastDecode {
  std::span<const void* const> payloads;  // each with `count` values of the wire or raw type
  std::size_t count;
  DecodeOutput to;
  WireForm wire_form = WireForm::kFramed;
};

/// Computes the sum of the payloads, in order from +0, by fma(value, factor, sum), plus
/// residual_factor · residual. The result is stored as wire values.
struct CastReduce {
  std::span<const void* const> payloads;
  Dtype dtype;  // of the gradient; determines the wire type
  std::size_t count;
  float factor = 1;
  ErrorFeedback feedback;
  CastOutput output;
  Noise noise = {};
};

/// The loops of a format for one instruction set. Encode and reduce return the number of finite
/// values that became infinite as f16.
struct CastLoops {
  std::size_t (*encode)(const CastEncode&);
  void (*decode)(const CastDecode&);
  std::size_t (*reduce)(const CastReduce&);
};

/// Returns the loops of the current instruction set.
template <class Format>
CastLoops cast_loops();

/// Device functions queue their work on the call's stream. The caller has validated the call.
template <class Format>
void cast_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame);
/// Writes raw values times `factor`, rounded to nearest. The output may be the gradient's own
/// memory.
template <class Format>
void cast_device_encode_native(const EncodeCall& call, float factor, ValueSpan values);
/// If a frame's header differs from `expected`, the outputs become NaN.
template <class Format>
void cast_device_decode(const DecodeCall& call, const FrameHeader& expected);
/// Decodes received raw values.
template <class Format>
void cast_device_decode_native(const DecodeCall& call, ConstValueSpan values);
/// If an input frame's header differs from the header of `frame`, all values of the written frame
/// are NaN.
template <class Format>
void cast_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame);

}  // namespace tersor::kernels
