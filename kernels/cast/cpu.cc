// The cast formats on the CPU: the loops of loops-inl.h, once for each instruction set.

#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/cast/loops-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

#define TERSOR_LOOPS(Format) \
  CastLoops Format##_loops() { return {encode<Format>, decode<Format>, reduce<Format>}; }
TERSOR_CAST_FORMATS(TERSOR_LOOPS)
#undef TERSOR_LOOPS

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

#define TERSOR_INSTANTIATE(Format)                               \
  HWY_EXPORT(Format##_loops);                                    \
  template <>                                                    \
  std::size_t cast_encode<Format>(const CastEncode& arguments) { \
    return TERSOR_DISPATCH(Format##_loops)().encode(arguments);  \
  }                                                              \
  template <>                                                    \
  void cast_decode<Format>(const CastDecode& arguments) {        \
    TERSOR_DISPATCH(Format##_loops)().decode(arguments);         \
  }                                                              \
  template <>                                                    \
  std::size_t cast_reduce<Format>(const CastReduce& arguments) { \
    return TERSOR_DISPATCH(Format##_loops)().reduce(arguments);  \
  }
TERSOR_CAST_FORMATS(TERSOR_INSTANTIATE)

}  // namespace tersor::kernels
#endif
