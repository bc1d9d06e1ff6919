// int8 on the CPU: the loops of kernels/quantize/loops-inl.h, once for each instruction set.

#include "kernels/int8/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int8/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/quantize/int8.h"
#include "kernels/quantize/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

void int8_encode_on(const QuantizeEncode& arguments) { encode<Int8Format>(arguments); }
void int8_decode_on(const QuantizeDecode& arguments) { decode<Int8Format>(arguments); }
void int8_reduce_on(const QuantizeReduce& arguments) { reduce<Int8Format>(arguments); }

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(int8_encode_on);
HWY_EXPORT(int8_decode_on);
HWY_EXPORT(int8_reduce_on);

void int8_encode(const QuantizeEncode& arguments) { TERSOR_DISPATCH(int8_encode_on)(arguments); }
void int8_decode(const QuantizeDecode& arguments) { TERSOR_DISPATCH(int8_decode_on)(arguments); }
void int8_reduce(const QuantizeReduce& arguments) { TERSOR_DISPATCH(int8_reduce_on)(arguments); }

}  // namespace tersor::kernels
#endif
