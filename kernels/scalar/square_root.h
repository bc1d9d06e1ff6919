// The square root used in formulas, for g++ and for nvcc.
#pragma once

#include "kernels/scalar/bits.h"

#include <cmath>

namespace tersor::kernels {

/// sqrt, rounded once.
TERSOR_BODY float square_root(float value) {
#if defined(__CUDA_ARCH__)
  return __fsqrt_rn(value);
#else
  return std::sqrt(value);
#endif
}

}  // namespace tersor::kernels
