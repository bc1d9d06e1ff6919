// Directed rounding: .rz, .rm and .rp.
#pragma once

#include "tests/ptx_device/decode/decoder.h"

namespace ptx {

/// Where a statement does not round to nearest, its function runs with the host's rounding changed.
void direct_rounding(const Decoder& decoder, Instruction& ins);

}  // namespace ptx
