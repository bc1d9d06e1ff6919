// bf16 on the CPU: the loops of kernels/cast/loops-inl.h, once for each instruction set.

#include "kernels/bf16/cpu.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/bf16/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/cast/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

std::size_t bf16_encode_on(const CastEncode& arguments) { return cast_encode<Bf16>(arguments); }
void bf16_decode_on(const CastDecode& arguments) { cast_decode<Bf16>(arguments); }
std::size_t bf16_reduce_on(const CastReduce& arguments) { return cast_reduce<Bf16>(arguments); }

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

HWY_EXPORT(bf16_encode_on);
HWY_EXPORT(bf16_decode_on);
HWY_EXPORT(bf16_reduce_on);

void bf16_encode(const CastEncode& arguments) { TERSOR_DISPATCH(bf16_encode_on)(arguments); }
void bf16_decode(const CastDecode& arguments) { TERSOR_DISPATCH(bf16_decode_on)(arguments); }
void bf16_reduce(const CastReduce& arguments) { TERSOR_DISPATCH(bf16_reduce_on)(arguments); }

}  // namespace tersor::kernels
#endif
