// Accesses whose bytes matter together: vectors that other blocks may watch, and those
// that PTX_DEVICE_STORES=late delays. Each wraps the plain access that was chosen for a statement.
#pragma once

#include "tests/ptx_device/decode/accesses.h"
#include "tests/ptx_device/decode/decoder.h"

namespace ptx {

/// Loads and stores, once their function and values are known.
void wrap_load(const Decoder& decoder, Instruction& ins, const AccessType& access);
void wrap_store(const Decoder& decoder, Instruction& ins, const AccessType& access);
/// Atomic operations, with the length of what lies in memory.
void wrap_atomic(const Decoder& decoder, Instruction& ins, Space space);
/// fence, membar and bar.warp.sync.
WarpFunction late_fence(const Decoder& decoder);
WarpFunction late_warp_barrier();

}  // namespace ptx
