// int4 on the CPU; what the arguments mean stands in kernels/quantize/arguments.h, the arithmetic
// in kernels/quantize/formulas.h. Same bytes on every instruction set.
#pragma once

#include "kernels/quantize/arguments.h"

namespace tersor::kernels {

/// Quantises a range, with or without error feedback.
void int4_encode(const QuantizeEncode& arguments);

/// Decodes the sum of one or more payloads.
void int4_decode(const QuantizeDecode& arguments);

/// Adds payloads and quantises their sum.
void int4_reduce(const QuantizeReduce& arguments);

}  // namespace tersor::kernels
