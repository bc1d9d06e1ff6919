// See events.h: events as marks in streams, and events in captures.
#include "tests/ptx_device/runtime/events.h"

#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/queue.h"

#include <algorithm>

namespace ptx {
namespace {

struct Event {
  unsigned flags = 0;
  std::shared_ptr<Mark> mark;        // null: never recorded, or in a capture
  const Capture* capture = nullptr;  // may have ended
  std::uint64_t capture_id = 0;
  std::vector<std::size_t> frontier;  // nodes captured before the event
};

std::atomic<std::size_t> live_now{0};

Event* event_of(cudaEvent_t event) { return reinterpret_cast<Event*>(event); }

cudaError_t make(cudaEvent_t* event, unsigned flags) {
  ++live_now;
  auto* made = new Event;
  made->flags = flags;
  *event = reinterpret_cast<cudaEvent_t>(made);
  return cudaSuccess;
}

cudaError_t end(cudaEvent_t event) {
  if (event == nullptr) return done(cudaErrorInvalidResourceHandle);
  --live_now;
  delete event_of(event);
  return cudaSuccess;
}

bool is_captured(const Event& event) {
  return event.capture != nullptr && is_under_way(event.capture_id);
}

cudaError_t record_in_capture(Event& event, const Stream& stream) {
  if (stream.capture->is_broken) return cudaErrorStreamCaptureInvalidated;
  event.capture = stream.capture;
  event.capture_id = stream.capture->id;
  event.frontier = stream.frontier;
  return cudaSuccess;
}

cudaError_t record(Event& event, cudaStream_t handle) {
  if (!is_known(handle)) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(capture_mutex());
  Stream* stream = stream_of(handle);
  if (stream->capture != nullptr) return record_in_capture(event, *stream);
  event.capture = nullptr;
  event.mark = std::make_shared<Mark>();
  // The mark is passed even on a broken device, because otherwise waits would never end.
  cudaError_t status = cudaSuccess;
  if (is_null(handle)) status = queue(handle, [] {});
  stream->add([mark = event.mark] { mark->pass(); });
  return status;
}

/// Adds the stream to the capture. The event may begin the stream's capture.
cudaError_t join(Capture& capture, Stream& stream) {
  if (stream.capture == nullptr) {
    stream.capture = &capture;
    stream.frontier.clear();
    capture.streams.insert(&stream);
  } else if (stream.capture != &capture) {
    stream.capture->is_broken = capture.is_broken = true;
    return cudaErrorStreamCaptureMerge;
  }
  return cudaSuccess;
}

cudaError_t wait_in_capture(const Event& event, cudaStream_t handle) {
  if (!is_captured(event)) return cudaErrorStreamCaptureIsolation;
  auto& capture = const_cast<Capture&>(*event.capture);
  if (capture.is_broken) return cudaErrorStreamCaptureInvalidated;
  if (is_null(handle)) {
    capture.is_broken = true;
    return cudaErrorStreamCaptureImplicit;
  }
  Stream& stream = *stream_of(handle);
  if (const cudaError_t status = join(capture, stream); status != cudaSuccess) return status;
  std::vector<std::size_t>& frontier = stream.frontier;
  for (std::size_t node : event.frontier)
    if (std::find(frontier.begin(), frontier.end(), node) == frontier.end())
      frontier.push_back(node);
  return cudaSuccess;
}

cudaError_t wait(const Event& event, cudaStream_t handle) {
  if (!is_known(handle)) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(capture_mutex());
  if (event.capture != nullptr) return wait_in_capture(event, handle);
  if (event.mark == nullptr) return cudaSuccess;
  Stream* stream = stream_of(handle);
  if (stream->capture != nullptr) {
    stream->capture->is_broken = true;
    return cudaErrorStreamCaptureIsolation;
  }
  stream->wait_for(event.mark);
  return cudaSuccess;
}

/// The host can neither query nor wait for an event of a capture.
cudaError_t refuse_captured(const Event& event) {
  const std::lock_guard lock(capture_mutex());
  if (!is_captured(event)) return cudaSuccess;
  const_cast<Capture*>(event.capture)->is_broken = true;
  return cudaErrorCapturedEvent;
}

bool is_timed(const Event& event) {
  return (event.flags & cudaEventDisableTiming) == 0 && event.mark != nullptr;
}

}  // namespace

std::size_t live_events() { return live_now; }

}  // namespace ptx

using namespace ptx;

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  PTX_API;
  return make(event, flags);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  PTX_API;
  return make(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) { PTX_API_ENDS(end(event)); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  PTX_API;
  return done(record(*event_of(event), stream));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  PTX_API;
  return done(record(*event_of(event), stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  PTX_API;
  return done(wait(*event_of(event), stream));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  PTX_API;
  const Event& event = *event_of(handle);
  if (const cudaError_t status = refuse_captured(event); status != cudaSuccess) return done(status);
  PTX_UNSAFE;
  if (event.mark != nullptr && !event.mark->passed()) return done(cudaErrorNotReady);
  return done(sticky());
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  PTX_API;
  const Event& event = *event_of(handle);
  if (const cudaError_t status = refuse_captured(event); status != cudaSuccess) return done(status);
  PTX_UNSAFE;
  const auto mark = event.mark;
  if (mark != nullptr) mark->wait();
  return done(sticky());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  PTX_API;
  const Event &first = *event_of(begin), &last = *event_of(end);
  if (!is_timed(first) || !is_timed(last)) return done(cudaErrorInvalidResourceHandle);
  if (!first.mark->passed() || !last.mark->passed()) return done(cudaErrorNotReady);
  const auto between = last.mark->time() - first.mark->time();
  *milliseconds = std::chrono::duration<float, std::milli>(between).count();
  return cudaSuccess;
}

}  // extern "C"
