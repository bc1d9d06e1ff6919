// marks.h in builds without CUDA.
#if !TERSOR_HAS_CUDA

#include "kernels/device/marks.h"

#include "kernels/device/device.h"

namespace tersor::kernels {

void mark_begun(ProgressWords*, std::chrono::milliseconds, std::uint32_t, StreamView) {
  require_device();
}
void mark_ended(ProgressWords*, StreamView) { require_device(); }
void mark_signal(ProgressWords*, StreamView) { require_device(); }
void spoil(ByteSpan, StreamView) { require_device(); }

}  // namespace tersor::kernels

#endif
