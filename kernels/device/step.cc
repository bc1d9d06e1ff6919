// step.h in builds without CUDA.
#if !TERSOR_HAS_CUDA

#include "kernels/device/step.h"

#include "kernels/device/device.h"

namespace tersor::kernels {

void advance_step(StateWords*, StreamView) { require_device(); }

}  // namespace tersor::kernels

#endif
