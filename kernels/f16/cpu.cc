// f16 on the CPU: the loops of kernels/cast/loops-inl.h, once for each instruction set.

#include "kernels/f16/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/f16/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/cast/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

std::size_t f16_encode_on(const CastEncode& arguments) { return cast_encode<F16>(arguments); }
void f16_decode_on(const CastDecode& arguments) { cast_decode<F16>(arguments); }
std::size_t f16_reduce_on(const CastReduce& arguments) { return cast_reduce<F16>(arguments); }

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(f16_encode_on);
HWY_EXPORT(f16_decode_on);
HWY_EXPORT(f16_reduce_on);

std::size_t f16_encode(const CastEncode& arguments) {
  return TERSOR_DISPATCH(f16_encode_on)(arguments);
}
void f16_decode(const CastDecode& arguments) { TERSOR_DISPATCH(f16_decode_on)(arguments); }
std::size_t f16_reduce(const CastReduce& arguments) {
  return TERSOR_DISPATCH(f16_reduce_on)(arguments);
}

}  // namespace tersor::kernels
#endif
