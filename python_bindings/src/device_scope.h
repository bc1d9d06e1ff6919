// The CUDA device of an array while a call works on it.
#pragma once

#include "kernels/device/device.h"
#include "python_bindings/src/arrays.h"

#include <tersor/error.h>

namespace tersor::python {

/// While it lives, the calling thread's current device is that of the array. Nothing on the host.
class DeviceScope {
 public:
  template <typename Span>
  explicit DeviceScope(const Array<Span>& array)
      : active_(array.memory == Memory::kDevice),
        before_(active_ ? kernels::current_device() : array.device) {
    if (active_ && before_ != array.device) kernels::use_device(array.device);
  }
  ~DeviceScope() {
    if (!active_) return;
    try {
      kernels::use_device(before_);
    } catch (const Error&) {
      // It was in use before.
    }
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool active_;
  int before_;
};

}  // namespace tersor::python
