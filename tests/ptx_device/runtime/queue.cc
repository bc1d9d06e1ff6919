// See queue.h.
#include "tests/ptx_device/runtime/queue.h"

#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"

#include <map>
#include <set>

namespace ptx {
namespace {

using Marks = std::vector<std::shared_ptr<Mark>>;

/// Lock order: capture_mutex() first, then this mutex.
struct Streams {
  std::recursive_mutex mutex;
  std::set<Stream*> made;
  std::map<int, Stream*> null;  // by device
};
Streams& streams() {
  static auto* streams = new Streams;
  return *streams;
}

Stream* null_stream(int device) {
  const std::lock_guard lock(streams().mutex);
  Stream*& stream = streams().null[device];
  if (stream == nullptr) stream = new Stream(device, false);
  return stream;
}

/// The stream that cudaStreamPerThread names in this thread. Never destroyed.
Stream* stream_of_thread(int device) {
  thread_local std::map<int, Stream*> own;
  Stream*& stream = own[device];
  if (stream == nullptr) stream = reinterpret_cast<Stream*>(add_stream(cudaStreamDefault));
  return stream;
}

/// Adds the ends of all streams the default stream waits for.
cudaError_t mark_all_that_block(const Stream& null, Marks& marks) {
  for (Stream* other : streams().made) {
    if (!other->blocks || other->device != null.device) continue;
    if (other->capture != nullptr) {
      other->capture->is_broken = true;
      return cudaErrorStreamCaptureImplicit;
    }
    if (!other->idle()) marks.push_back(other->mark());
  }
  return cudaSuccess;
}

/// Adds the ends of all work preceding new work on `stream`.
cudaError_t mark_what_is_before(cudaStream_t handle, const Stream& stream, Marks& marks) {
  const std::lock_guard lock(streams().mutex);
  if (is_null(handle)) return mark_all_that_block(stream, marks);
  if (!stream.blocks) return cudaSuccess;
  Stream* null = null_stream(stream.device);
  if (!null->idle()) marks.push_back(null->mark());
  return cudaSuccess;
}

/// A capture ends with its origin stream. If another stream of the capture is destroyed, the
/// capture is broken.
void leave_capture(Stream& stream) {
  Capture& capture = *stream.capture;
  if (capture.origin == &stream) return forget_capture(stream);
  capture.is_broken = true;
  capture.streams.erase(&stream);
}

}  // namespace

cudaStream_t add_stream(unsigned flags) {
  auto* made = new Stream(current_device(), (flags & cudaStreamNonBlocking) == 0);
  const std::lock_guard lock(streams().mutex);
  streams().made.insert(made);
  return reinterpret_cast<cudaStream_t>(made);
}

void remove_stream(Stream* stream) {
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture != nullptr) leave_capture(*stream);
    const std::lock_guard streams_lock(streams().mutex);
    streams().made.erase(stream);
  }
  stream->close();
}

std::size_t live_streams() {
  const std::lock_guard lock(streams().mutex);
  return streams().made.size();
}

bool is_null(cudaStream_t stream) { return stream == nullptr || stream == cudaStreamLegacy; }

Stream* stream_of(cudaStream_t stream) {
  if (stream == cudaStreamPerThread) return stream_of_thread(current_device());
  return is_null(stream) ? null_stream(current_device()) : reinterpret_cast<Stream*>(stream);
}

bool is_known(cudaStream_t stream) {
  if (is_null(stream) || stream == cudaStreamPerThread) return true;
  const std::lock_guard lock(streams().mutex);
  return streams().made.count(reinterpret_cast<Stream*>(stream)) != 0;
}

bool is_captured(cudaStream_t stream) {
  if (is_null(stream)) return false;
  const std::lock_guard lock(capture_mutex());
  return stream_of(stream)->capture != nullptr;
}

cudaError_t queue(cudaStream_t handle, std::function<void()> work, bool waits) {
  if (!is_known(handle)) return cudaErrorInvalidResourceHandle;
  Stream* stream = stream_of(handle);
  const std::lock_guard lock(capture_mutex());
  Marks marks;
  if (stream->capture != nullptr) {
    if (stream->capture->is_broken) return cudaErrorStreamCaptureInvalidated;
  } else if (const auto status = mark_what_is_before(handle, *stream, marks);
             status != cudaSuccess) {
    return status;
  }
  for (auto& mark : marks) stream->wait_for(std::move(mark));
  const auto where_it_works = [work = std::move(work)] {
    if (sticky() == cudaSuccess) work();
  };
  stream->add(where_it_works, waits);
  return cudaSuccess;
}

cudaError_t synchronize(Stream* stream) {
  {
    const std::lock_guard lock(capture_mutex());
    if (stream->capture != nullptr) {
      stream->capture->is_broken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  stream->synchronize();
  return sticky();
}

}  // namespace ptx
