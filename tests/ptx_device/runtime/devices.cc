// Functions for counting, selecting, describing and synchronizing devices.
#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/properties.h"

#include <cstdio>

using namespace ptx;

namespace {

bool is_device(int device) { return device >= 0 && device < settings().devices; }

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  PTX_API_ALWAYS;
  *count = settings().devices;
  return done(*count == 0 ? cudaErrorNoDevice : cudaSuccess);
}

cudaError_t cudaGetDevice(int* device) {
  PTX_API_ALWAYS;
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  PTX_API_ALWAYS;
  if (!is_device(device)) return done(cudaErrorInvalidDevice);
  current_device() = device;
  return done(sticky());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  PTX_API_ALWAYS;
  if (!is_device(device)) return done(cudaErrorInvalidDevice);
  *properties = device_properties();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  PTX_API_ALWAYS;
  if (!is_device(device)) return done(cudaErrorInvalidDevice);
  *value = device_attribute(which);
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  PTX_API;
  PTX_UNSAFE;
  if (break_captures()) return done(cudaErrorStreamCaptureUnsupported);
  wait_for_device(current_device());
  return done(sticky());
}

cudaError_t cudaDeviceReset() {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  PTX_API_ALWAYS;
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  PTX_API_ALWAYS;
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  PTX_API_ALWAYS;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  PTX_API_ALWAYS;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  PTX_API_ALWAYS;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

cudaError_t cudaProfilerStop() {
  PTX_API_ALWAYS;
  return cudaSuccess;
}

}  // extern "C"
