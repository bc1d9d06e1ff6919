// The device's properties: an H100, except for environment settings.
#pragma once

#include <cuda_runtime_api.h>

namespace ptx {

cudaDeviceProp device_properties();
/// Returns 0 for unknown attributes.
int device_attribute(cudaDeviceAttr which);

}  // namespace ptx
