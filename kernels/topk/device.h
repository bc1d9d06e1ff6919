// Top-k on a device, with the same bytes as on the CPU. Kernels are queued on the call's stream.
// The caller has validated the call.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/topk/formulas.h"

#include <tersor/codec.h>
#include <tersor/codecs/topk.h>

#include <cstddef>

namespace tersor::kernels {

/// Returns the workspace bytes needed to encode one segment. Segments are encoded one after
/// another.
std::size_t topk_device_workspace_bytes(std::size_t count, double density);

/// `force` makes the sampled threshold miss. For tests.
void topk_device_encode(const EncodeCall& call, const TopkOptions& options,
                        const DeviceFrame& frame, TopkForce force = TopkForce::kNothing);

/// If a frame's header differs from `expected`, all outputs become NaN. If a frame's indices are
/// invalid, the outputs of the affected units become NaN.
void topk_device_decode(const DecodeCall& call, const TopkOptions& options,
                        const FrameHeader& expected);

}  // namespace tersor::kernels
