// blocktopk on a device: the same bytes as on the CPU. Queued on the call's stream; the call was
// checked.
#pragma once

#include "kernels/device/device_frame.h"

#include <tersor/codec.h>
#include <tersor/codecs/blocktopk.h>

namespace tersor::kernels {

void blocktopk_device_encode(const EncodeCall& call, const BlocktopkBlock& block,
                             const DeviceFrame& frame);

/// Frames whose header is not `expected` make the outputs NaN, damaged places those of their block.
void blocktopk_device_decode(const DecodeCall& call, const BlocktopkBlock& block,
                             const FrameHeader& expected);

/// Frames whose header is not that of `frame`, or whose checksum is another, poison all blocks of
/// the one that is written, damaged places their own.
void blocktopk_device_reduce(const ReduceCall& call, const BlocktopkBlock& block,
                             const DeviceFrame& frame);

}  // namespace tersor::kernels
