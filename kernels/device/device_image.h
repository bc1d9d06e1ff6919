// A kernel that is always there: by it a process finds out whether its device can run any.
#pragma once

namespace tersor::kernels {

/// Its address, as the CUDA runtime wants it.
const void* any_kernel();

}  // namespace tersor::kernels
