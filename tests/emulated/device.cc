// The emulated device stands in for kernels/common/device.cc: it is always there, and its memory is
// what the tests declared.

#include "kernels/common/device.h"

#include "tests/emulated/emulator.h"

#include <tersor/error.h>
#include <tersor/stream.h>

namespace tersor {
namespace kernels {

void require_device() {}

void check_device_pointer(const void* pointer) {
  if (!emulator::is_known(pointer))
    throw InvalidArgument("given as device memory, but the pointer is to the host's");
}

void check_stream(StreamView) {}

}  // namespace kernels

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::synchronize() const {}

}  // namespace tersor
