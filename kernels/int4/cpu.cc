// int4 on the CPU: the loops of kernels/common/quantize-inl.h, once for each instruction set.

#include "kernels/int4/cpu.h"

#include "kernels/common/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int4/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/common/quantize-inl.h"
#include "kernels/int4/formulas.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

void int4_encode_on(const QuantizeEncode& arguments) { encode<Int4Format>(arguments); }
void int4_decode_on(const QuantizeDecode& arguments) { decode<Int4Format>(arguments); }
void int4_reduce_on(const QuantizeReduce& arguments) { reduce<Int4Format>(arguments); }

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/common/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(int4_encode_on);
HWY_EXPORT(int4_decode_on);
HWY_EXPORT(int4_reduce_on);

void int4_encode(const QuantizeEncode& arguments) { TERSOR_DISPATCH(int4_encode_on)(arguments); }
void int4_decode(const QuantizeDecode& arguments) { TERSOR_DISPATCH(int4_decode_on)(arguments); }
void int4_reduce(const QuantizeReduce& arguments) { TERSOR_DISPATCH(int4_reduce_on)(arguments); }

}  // namespace tersor::kernels
#endif
