// Implements event.h.
#include "kernels/device/event.h"

#include "kernels/device/device.h"

#if TERSOR_HAS_CUDA
#include "kernels/device/cuda_error.h"
#endif

namespace tersor::kernels {
#if TERSOR_HAS_CUDA
namespace {

cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

}  // namespace

Event::Event() {
  require_device();
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  handle_ = event;
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(event_of(handle_));
}

void Event::record(StreamView stream) {
  check_cuda(cudaEventRecord(event_of(handle_), stream_of(stream)), "recording an event");
}

void Event::hold(StreamView stream) const {
  check_cuda(cudaStreamWaitEvent(stream_of(stream), event_of(handle_), 0),
             "letting a stream wait for an event");
}

bool Event::done() const {
  const cudaError_t status = cudaEventQuery(event_of(handle_));
  if (status == cudaErrorNotReady) {
    if (cudaPeekAtLastError() == cudaErrorNotReady) (void)cudaGetLastError();  // not an error
    return false;
  }
  check_cuda(status, "asking whether queued work is done");
  return true;
}

#else

Event::Event() { require_device(); }
Event::~Event() = default;
void Event::record(StreamView) {}
void Event::hold(StreamView) const {}
bool Event::done() const { return true; }

#endif
}  // namespace tersor::kernels
