// See captures.h: functions for beginning, ending and querying captures.
#include "tests/ptx_device/runtime/captures.h"

#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/queue.h"

#include <algorithm>
#include <map>

namespace ptx {
namespace {

/// Protected by capture_mutex().
struct Captures {
  std::map<std::uint64_t, std::unique_ptr<Capture>> under_way;
  std::uint64_t count = 0;
};
Captures& captures() {
  static auto* captures = new Captures;
  return *captures;
}

thread_local int mode_of_thread = cudaStreamCaptureModeGlobal;

bool forbids(const Capture& capture) {
  if (capture.mode == cudaStreamCaptureModeGlobal && mode_of_thread == cudaStreamCaptureModeGlobal)
    return true;
  const bool is_own = capture.thread == std::this_thread::get_id();
  return is_own && capture.mode != cudaStreamCaptureModeRelaxed &&
         mode_of_thread != cudaStreamCaptureModeRelaxed;
}

void begin(Stream& stream, cudaStreamCaptureMode mode) {
  auto capture = std::make_unique<Capture>();
  capture->id = ++captures().count;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = &stream;
  capture->streams.insert(&stream);
  stream.capture = capture.get();
  stream.frontier.clear();
  captures().under_way[capture->id] = std::move(capture);
}

/// True if all captured nodes precede the stream's next node.
bool is_joined(const Graph& graph, std::vector<std::size_t> open) {
  std::vector<char> reached(graph.nodes.size(), 0);
  while (!open.empty()) {
    const std::size_t node = open.back();
    open.pop_back();
    if (reached[node] != 0) continue;
    reached[node] = 1;
    const std::vector<std::size_t>& before = graph.nodes[node].before;
    open.insert(open.end(), before.begin(), before.end());
  }
  return std::find(reached.begin(), reached.end(), 0) == reached.end();
}

/// The error of ending a capture with this stream, or cudaSuccess.
cudaError_t refusal_to_end(const Stream& stream) {
  const Capture* capture = stream.capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->origin != &stream) return cudaErrorStreamCaptureUnmatched;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  return cudaSuccess;
}

cudaError_t end(Stream& stream, cudaGraph_t* graph) {
  const Capture* capture = stream.capture;
  const bool joined = is_joined(*capture->graph, stream.frontier), is_broken = capture->is_broken;
  const std::shared_ptr<Graph> kept = capture->graph;
  forget_capture(stream);
  if (is_broken) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = reinterpret_cast<cudaGraph_t>(new Executable{kept});
  return cudaSuccess;
}

cudaError_t end_of(cudaStream_t handle, cudaGraph_t* graph) {
  if (is_null(handle) || !is_known(handle)) return cudaErrorInvalidResourceHandle;
  const std::lock_guard lock(capture_mutex());
  Stream& stream = *stream_of(handle);
  const cudaError_t refusal = refusal_to_end(stream);
  return refusal == cudaSuccess ? end(stream, graph) : refusal;
}

cudaError_t capture_status(cudaStream_t stream, cudaStreamCaptureStatus* status,
                           unsigned long long* id) {
  if (!is_known(stream)) return done(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(capture_mutex());
  const Capture* capture = is_null(stream) ? nullptr : stream_of(stream)->capture;
  *status = capture == nullptr   ? cudaStreamCaptureStatusNone
            : capture->is_broken ? cudaStreamCaptureStatusInvalidated
                                 : cudaStreamCaptureStatusActive;
  if (id != nullptr && capture != nullptr) *id = capture->id;
  return cudaSuccess;
}

}  // namespace

void forget_capture(Stream& stream) {
  const std::uint64_t id = stream.capture->id;
  for (Stream* other : std::set<Stream*>(stream.capture->streams)) {
    other->capture = nullptr;
    other->frontier.clear();
  }
  captures().under_way.erase(id);
}

bool is_forbidden() {
  const std::lock_guard lock(capture_mutex());
  for (const auto& [id, capture] : captures().under_way)
    if (forbids(*capture)) {
      capture->is_broken = true;
      return true;
    }
  return false;
}

bool is_under_way(std::uint64_t capture) { return captures().under_way.count(capture) != 0; }

bool break_captures() {
  const std::lock_guard lock(capture_mutex());
  for (auto& [id, capture] : captures().under_way) capture->is_broken = true;
  return !captures().under_way.empty();
}

}  // namespace ptx

using namespace ptx;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  PTX_API;
  if (is_null(stream)) return done(cudaErrorStreamCaptureUnsupported);
  if (!is_known(stream)) return done(cudaErrorInvalidResourceHandle);
  const std::lock_guard lock(capture_mutex());
  if (stream_of(stream)->capture != nullptr) return done(cudaErrorIllegalState);
  begin(*stream_of(stream), mode);
  return cudaSuccess;
}

// An injected error or a broken device also ends the capture.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t before = enter(__func__, When::kDeviceWorks);
  *graph = nullptr;
  const cudaError_t ended = end_of(stream, graph);
  if (before == cudaSuccess) return done(ended);
  delete reinterpret_cast<Executable*>(*graph);
  *graph = nullptr;
  return before;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  PTX_API_ALWAYS;
  return capture_status(stream, status, nullptr);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  PTX_API;
  if (graph != nullptr) *graph = nullptr;
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return capture_status(stream, status, id);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  PTX_API_ALWAYS;
  const int before = mode_of_thread;
  mode_of_thread = *mode;
  *mode = static_cast<cudaStreamCaptureMode>(before);
  return cudaSuccess;
}

}  // extern "C"
