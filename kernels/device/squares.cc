// squares.h in builds without CUDA.
#if !TERSOR_HAS_CUDA

#include "kernels/device/squares.h"

#include "kernels/device/device.h"

namespace tersor::kernels {

void add_squares(ConstValueSpan, double*, StreamView) { require_device(); }

}  // namespace tersor::kernels

#endif
