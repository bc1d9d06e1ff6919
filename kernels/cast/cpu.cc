// The cast formats on the CPU: the loops of loops-inl.h, compiled once per instruction set.

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

#define TERSOR_DISPATCH_LOOPS(Format)         \
  HWY_EXPORT(Format##_loops);                 \
  template <>                                 \
  CastLoops cast_loops<Format>() {            \
    return TERSOR_DISPATCH(Format##_loops)(); \
  }
TERSOR_CAST_FORMATS(TERSOR_DISPATCH_LOOPS)

}  // namespace tersor::kernels
#endif
