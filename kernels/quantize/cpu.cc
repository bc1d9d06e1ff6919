// Quantising formats on the CPU: the loops of largest-inl.h, compiled once per instruction set.

#include "kernels/quantize/kernels.h"

#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantize/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/quantize/largest-inl.h"

#define TERSOR_VECTORS
#include "kernels/quantize/formats.h"
#undef TERSOR_VECTORS

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

#define TERSOR_QUANTIZE_FORMAT(Format) \
  QuantizeLoops Format##_loops() { return loops_of<Format>(); }
#include "kernels/quantize/formats.h"
#undef TERSOR_QUANTIZE_FORMAT

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {
#define TERSOR_QUANTIZE_FORMAT(Format)        \
  HWY_EXPORT(Format##_loops);                 \
  template <>                                 \
  QuantizeLoops quantize_loops<Format>() {    \
    return TERSOR_DISPATCH(Format##_loops)(); \
  }
#include "kernels/quantize/formats.h"
#undef TERSOR_QUANTIZE_FORMAT

}  // namespace tersor::kernels
#endif
