// Top-k on a device: the same bytes as on the CPU. Queued on the call's stream; the call was
// checked.
#pragma once

#include "kernels/device/device_frame.h"
#include "kernels/topk/formulas.h"

#include <tersor/codec.h>
#include <tersor/codecs/topk.h>

#include <cstddef>

namespace tersor::kernels {

/// Bytes of the call's workspace that encoding one segment needs; segments follow one another.
std::size_t topk_device_workspace_bytes(std::size_t count, double density);

/// `force` is for tests: it makes the sampled threshold miss.
void topk_device_encode(const EncodeCall& call, const TopkOptions& options,
                        const DeviceFrame& frame, TopkForce force = TopkForce::kNothing);

/// Frames whose header is not `expected` make all outputs NaN; places that are not sound, those
/// outputs in whose neighbourhood they are met.
void topk_device_decode(const DecodeCall& call, const TopkOptions& options,
                        const FrameHeader& expected);

}  // namespace tersor::kernels
