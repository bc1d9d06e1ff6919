// int4 on the CPU: the loops of kernels/quantize/loops-inl.h, once for each instruction set.

#include "kernels/int4/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int4/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/quantize/int4.h"
#include "kernels/quantize/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

void int4_encode_on(const QuantizeEncode& arguments) { encode<Int4Format>(arguments); }
void int4_decode_on(const QuantizeDecode& arguments) { decode<Int4Format>(arguments); }
void int4_reduce_on(const QuantizeReduce& arguments) { reduce<Int4Format>(arguments); }

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(int4_encode_on);
HWY_EXPORT(int4_decode_on);
HWY_EXPORT(int4_reduce_on);

void int4_encode(const QuantizeEncode& arguments) { TERSOR_DISPATCH(int4_encode_on)(arguments); }
void int4_decode(const QuantizeDecode& arguments) { TERSOR_DISPATCH(int4_decode_on)(arguments); }
void int4_reduce(const QuantizeReduce& arguments) { TERSOR_DISPATCH(int4_reduce_on)(arguments); }

}  // namespace tersor::kernels
#endif
