// The checks made by a call before queueing kernels: a build with CUDA, a driver, a supported
// device, and pointers and a stream of this device.
#pragma once

#include <tersor/stream.h>

#include <cstdint>
#include <string>

namespace tersor::kernels {

/// True if this build has CUDA, whatever the machine.
bool has_cuda();

/// Throws CudaError if this build has no CUDA, or if the machine has no driver or no device. Also
/// throws CudaError if this build has no kernels for the current device. The message names the
/// cause.
void require_device();

/// Throws InvalidArgumentError if the current device cannot access the memory at `pointer`.
void check_device_pointer(const void* pointer);

/// Throws InvalidArgumentError if the stream does not belong to the current device.
void check_stream(StreamView stream);

/// Returns the ID of the capture that the stream is part of, or 0 if the stream is not captured.
std::uint64_t capture_of(StreamView stream);

/// Lets this thread allocate memory and query events while other threads capture their own streams.
/// Otherwise CUDA would refuse both.
void ignore_captures();

/// Waits until all work queued on the stream is done. Throws CudaError if any of the work failed.
void synchronize(StreamView stream);

/// Get and set the device of this thread's calls. A new thread starts with device 0. Both throw
/// CudaError.
int current_device();
void use_device(int device);
/// Like use_device, but ignores errors. CUDA also reports errors of earlier kernels here, and a
/// destructor or a thread must go on after these errors.
void try_use_device(int device) noexcept;

/// While a DeviceScope exists, the device is current in the calling thread. A negative number
/// (host memory) changes nothing.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int device_, before_;
};

/// Returns the name of the current device.
std::string device_name();

/// Sleeps for some microseconds between two polls of a word that a device will write.
void sleep_between_polls();

}  // namespace tersor::kernels
