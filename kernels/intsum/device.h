// intsum on a device, with the same bits as on the CPU. Work is queued on the call's stream. The
// caller has validated the call.
#pragma once

#include <tersor/codec.h>
#include <tersor/codecs/intsum.h>

namespace tersor::kernels {

/// Round 0: computes the blocks' raw maxima.
void intsum_device_maxima(const EncodeCall& call, float factor, ValueSpan maxima);

/// Turns the result of round 0 into scales in the call's round state (Execution::round_state).
void intsum_device_scales(const DecodeCall& call, float levels, ConstValueSpan maxima);

/// Computes raw codes, the residuals and the next step's words. If the options contain a scale,
/// also computes the blocks' flags.
void intsum_device_encode(const EncodeCall& call, const IntsumOptions& options, float factor,
                          ValueSpan codes);

/// Decodes sums of codes, times the scales in the round state or the scale of the options.
void intsum_device_decode(const DecodeCall& call, const IntsumOptions& options,
                          ConstValueSpan codes);

}  // namespace tersor::kernels
