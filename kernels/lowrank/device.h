// lowrank on a device: the same bits as on the CPU. Queued on the call's stream; the call was
// checked. `rank` is the option.
#pragma once

#include <tersor/codec.h>

#include <cstddef>

namespace tersor::kernels {

/// Round 0: P.
void lowrank_device_project(const EncodeCall& call, std::size_t rank, ValueSpan projected);

/// The sum of P becomes an orthonormal basis in the call's kept memory.
void lowrank_device_basis(const DecodeCall& call, std::size_t rank, ConstValueSpan projected);

/// Round 1: W, f32 or bf16, the residuals and the next step's words.
void lowrank_device_coefficients(const EncodeCall& call, std::size_t rank, float factor,
                                 ValueSpan values);

/// The sum of W: the codec's memories, and the outputs.
void lowrank_device_decode(const DecodeCall& call, std::size_t rank, ConstValueSpan values);

}  // namespace tersor::kernels
