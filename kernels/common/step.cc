// step.h in builds without CUDA.
#if !TERSOR_HAS_CUDA

#include "kernels/common/step.h"

#include "kernels/common/device.h"

namespace tersor::kernels {

void advance_step(StateWords*, StreamView) { require_device(); }

}  // namespace tersor::kernels

#endif
