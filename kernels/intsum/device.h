// intsum on a device: the same bits as on the CPU. Queued on the call's stream; the call was
// checked.
#pragma once

#include <tersor/codec.h>
#include <tersor/codecs/intsum.h>

namespace tersor::kernels {

/// Round 0: the blocks' bare maxima.
void intsum_device_maxima(const EncodeCall& call, float factor, ValueSpan maxima);

/// What came back of round 0 becomes scales in the call's kept memory.
void intsum_device_scales(const DecodeCall& call, float levels, ConstValueSpan maxima);

/// Bare codes, the residuals and the next step's words; with a scale in the options the blocks'
/// flags, too.
void intsum_device_encode(const EncodeCall& call, const IntsumOptions& options, float factor,
                          ValueSpan codes);

/// Sums of codes, times the scales that are kept, or that of the options.
void intsum_device_decode(const DecodeCall& call, const IntsumOptions& options,
                          ConstValueSpan codes);

}  // namespace tersor::kernels
