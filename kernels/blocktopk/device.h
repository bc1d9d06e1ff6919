// blocktopk on a device, with the same bytes as on the CPU. Kernels are queued on the call's
// stream. The caller has validated the call.
#pragma once

#include "kernels/device/device_frame.h"

#include <tersor/codec.h>
#include <tersor/codecs/blocktopk.h>

namespace tersor::kernels {

void blocktopk_device_encode(const EncodeCall& call, const BlocktopkBlock& block,
                             const DeviceFrame& frame);

/// If a frame's header differs from `expected`, the outputs become NaN. Invalid indices turn the
/// outputs of their block into NaN.
void blocktopk_device_decode(const DecodeCall& call, const BlocktopkBlock& block,
                             const FrameHeader& expected);

/// If an input frame's header differs from the header of `frame`, or if a checksum is wrong, all
/// blocks of the written frame are poisoned. Invalid indices poison their own block.
void blocktopk_device_reduce(const ReduceCall& call, const BlocktopkBlock& block,
                             const DeviceFrame& frame);

}  // namespace tersor::kernels
