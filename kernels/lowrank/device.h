// lowrank on a device, with the same bits as on the CPU. Work is queued on the call's stream. The
// caller has validated the call. `rank` is the codec's option.
#pragma once

#include <tersor/codec.h>

#include <cstddef>

namespace tersor::kernels {

/// Round 0: computes P.
void lowrank_device_project(const EncodeCall& call, std::size_t rank, ValueSpan projected);

/// Turns the sum of P into an orthonormal basis in the call's round state (Execution::round_state).
void lowrank_device_basis(const DecodeCall& call, std::size_t rank, ConstValueSpan projected);

/// Round 1: computes W in f32 or bf16, the residuals and the next step's words.
void lowrank_device_coefficients(const EncodeCall& call, std::size_t rank, float factor,
                                 ValueSpan values);

/// Decodes the sum of W: writes the codec's memories and the outputs.
void lowrank_device_decode(const DecodeCall& call, std::size_t rank, ConstValueSpan values);

}  // namespace tersor::kernels
