// See api.h.
#include "tests/ptx_device/runtime/api.h"

#include "tests/ptx_device/runtime/injected.h"
#include "tests/ptx_device/settings.h"

#include <atomic>
#include <cstdio>

namespace ptx {
namespace {

std::atomic<cudaError_t> broken_by{cudaSuccess};
thread_local cudaError_t last = cudaSuccess;
thread_local int device_of_thread = 0;

void log(const char* name, const Injected& injected) {
  if (injected.error == cudaSuccess) {
    std::fprintf(stderr, "ptx-device: %s\n", name);
  } else {
    std::fprintf(stderr, "ptx-device: %s: error %d, as asked for\n", name, injected.error);
  }
}

}  // namespace

cudaError_t enter(const char* name, When when) {
  if (name[0] == '_') name += 2;  // __cudaLaunchKernel
  const Injected injected = count_call(name);
  if (settings().log > 1) log(name, injected);
  if (when == When::kDeviceWorks && sticky() != cudaSuccess) return done(sticky());
  if (injected.breaks_device) break_device(injected.error);
  return done(injected.error);
}

cudaError_t done(cudaError_t status) {
  if (status != cudaSuccess) last = status;
  return status;
}

cudaError_t last_error() { return sticky() != cudaSuccess ? sticky() : last; }
void forget_last_error() { last = cudaSuccess; }

cudaError_t sticky() { return broken_by; }
void break_device(cudaError_t error) { broken_by = error; }

int& current_device() { return device_of_thread; }

}  // namespace ptx
