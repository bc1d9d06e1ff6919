// What the device says it is: an H100, but for what the environment asks for.
#pragma once

#include <cuda_runtime_api.h>

namespace ptx {

cudaDeviceProp device_properties();
/// 0 for what is not known.
int device_attribute(cudaDeviceAttr which);

}  // namespace ptx
