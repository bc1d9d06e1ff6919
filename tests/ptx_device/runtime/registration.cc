// Functions called by nvcc's code before main to register modules, kernels and variables.
#include "tests/ptx_device/runtime/modules.h"

#include <cstdio>
#include <cstdlib>

using namespace ptx;

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) { return &add_image(wrapper)->handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 0; }

void __cudaRegisterFunction(void** image, const char* host, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  add_entry(*static_cast<Image*>(*image), host, name);
}

void __cudaRegisterVar(void** image, char* host, char*, const char* name, int, std::size_t, int,
                       int) {
  add_variable(*static_cast<Image*>(*image), host, name);
}

void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {
  std::fprintf(stderr, "ptx-device: __managed__ variables are not done here\n");
  std::abort();
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  Entry* entry = entry_of(function);
  *kernel = reinterpret_cast<cudaKernel_t>(entry);
  return entry == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}

}  // extern "C"
