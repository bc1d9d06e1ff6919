// Directed rounding: .rz, .rm and .rp.
#pragma once

#include "tests/ptx_device/decode/decoder.h"

namespace ptx {

/// Unless a statement rounds to nearest, runs the function with the host's rounding mode changed.
void direct_rounding(const Decoder& decoder, Instruction& ins);

}  // namespace ptx
