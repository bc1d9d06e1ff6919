// See hooks.h.
#include "tests/ptx_device/hooks.h"

#include "tests/ptx_device/machine/memory.h"
#include "tests/ptx_device/runtime/allocations.h"
#include "tests/ptx_device/runtime/api.h"
#include "tests/ptx_device/runtime/captures.h"
#include "tests/ptx_device/runtime/copies.h"
#include "tests/ptx_device/runtime/device.h"
#include "tests/ptx_device/runtime/events.h"
#include "tests/ptx_device/runtime/injected.h"
#include "tests/ptx_device/runtime/queue.h"
#include "tests/ptx_device/settings.h"

namespace ptx {

bool queue_on(void* stream, std::function<void()> work, bool waits) {
  return queue(static_cast<cudaStream_t>(stream), std::move(work), waits) == cudaSuccess;
}

char* bytes_at(const void* pointer, std::size_t bytes) {
  if (place_of(pointer, bytes) == CopySide::kPageable) return nullptr;
  bool is_device = false;
  return Memory::get().host_of(pointer, bytes, is_device);
}

void mark_written(const void* pointer, std::size_t bytes) {
  Memory::get().mark(pointer, bytes, true);
}

namespace {

std::size_t live(const std::string& kind) {
  if (kind == "allocations") return live_allocations();
  if (kind == "streams") return live_streams();
  if (kind == "events") return live_events();
  if (kind == "graphs") return Executable::live;
  return live_allocations() + live_streams() + live_events() + Executable::live;
}

}  // namespace
}  // namespace ptx

int ptx_device_fail(const char* asked) { return ptx::ask_for_errors(asked) ? 1 : 0; }
void ptx_device_mark(const void* pointer, std::size_t bytes, int written) {
  ptx::Memory::get().mark(pointer, bytes, written != 0);
}
void ptx_device_repair() {
  // A broken device skips queued work. No work may follow the skipped work after the repair.
  for (int device = 0; device < ptx::settings().devices; ++device) ptx::wait_for_device(device);
  ptx::break_device(cudaSuccess);
}
int ptx_device_is_broken() { return ptx::sticky() != cudaSuccess ? 1 : 0; }
std::size_t ptx_device_calls(const char* function) { return ptx::calls_of(function); }
const char* ptx_device_last_injected() { return ptx::last_injected(); }
std::size_t ptx_device_live(const char* kind) { return ptx::live(kind); }
