// Accesses of several bytes as a unit: vectors visible to other blocks, and accesses delayed by
// PTX_DEVICE_STORES=late. Each function wraps the plain access selected for a statement.
#pragma once

#include "tests/ptx_device/decode/accesses.h"
#include "tests/ptx_device/decode/decoder.h"

namespace ptx {

/// Wrap loads and stores after the selection of function and values.
void wrap_load(const Decoder& decoder, Instruction& ins, const AccessType& access);
void wrap_store(const Decoder& decoder, Instruction& ins, const AccessType& access);
/// Wraps atomic operations. The size is the size in memory.
void wrap_atomic(const Decoder& decoder, Instruction& ins, Space space);
/// fence, membar and bar.warp.sync.
WarpFunction late_fence(const Decoder& decoder);
WarpFunction late_warp_barrier();

}  // namespace ptx
