// What a call asks of the machine before it queues kernels: a build with CUDA, a driver, a device
// that the kernels were built for, pointers and a stream of that device.
#pragma once

#include <tersor/stream.h>

#include <cstdint>
#include <string>

namespace tersor::kernels {

/// Whether this build has CUDA, on whatever machine.
bool has_cuda();

/// Throws CudaError where this build has no CUDA, or the machine no driver or no device, or the
/// current device needs kernels that this build does not hold; the message says which.
void require_device();

/// Throws InvalidArgument where `pointer` is not memory that the current device can reach.
void check_device_pointer(const void* pointer);

/// Throws InvalidArgument where the stream belongs to another device than the current one.
void check_stream(StreamView stream);

/// The number of the capture that the stream is part of; 0 where its work runs as it is queued.
std::uint64_t capture_of(StreamView stream);

/// Lets this thread allocate, and query events, while other threads capture streams of their own:
/// CUDA would otherwise refuse both.
void ignore_captures();

/// Waits until all that was queued on the stream is done. Throws CudaError where something failed.
void synchronize(StreamView stream);

/// The device of this thread's calls. A new thread begins with device 0. Throw CudaError.
int current_device();
void use_device(int device);
/// What the current device calls itself.
std::string device_name();

/// Between two looks at a word that a device will write: lets others run, for some microseconds.
void rest();

}  // namespace tersor::kernels
