// A device that does nothing, asked as often as the CUDA runtime is. It stands in for
// kernels/common/{device,device_memory,event}.cc. Copies are made at once: what ranks agree on goes
// by way of them.
#include "kernels/common/device.h"
#include "kernels/common/device_memory.h"
#include "kernels/common/event.h"
#include "kernels/common/memory.cuh"
#include "tests/overhead/idle_counts.h"

#include <tersor/error.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>

namespace tersor {
namespace {

char somewhere;  // what streams and events are handles of

std::byte* allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

void use_event() { ++idle::counts.events; }

}  // namespace

void idle::launch(const void*) { ++counts.launches; }

namespace kernels {

std::byte* allocate_device(std::size_t bytes) { return allocate(bytes); }
void free_device(std::byte* memory) noexcept { std::free(memory); }
void free_pinned(std::byte* memory) noexcept { std::free(memory); }
std::byte* allocate_pinned(std::size_t bytes) {
  std::byte* memory = allocate(bytes);
  std::memset(memory, 0, bytes);
  return memory;
}

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView) {
  idle::launch(from);
  if (bytes != 0) std::memcpy(to, from, bytes);
}
void zero_bytes(void* memory, std::size_t, StreamView) { idle::launch(memory); }

void emulated_access(const void*, std::size_t, Access) {}

Event::Event() : handle_(&somewhere) {}
Event::~Event() = default;
void Event::record(StreamView) { use_event(); }
void Event::hold(StreamView) const { use_event(); }
bool Event::done() const {
  use_event();
  return true;
}

bool has_cuda() { return true; }
void require_device() { idle::ask(); }
void check_device_pointer(const void*) {
  ++idle::counts.pointers;
  idle::ask();
}
void check_stream(StreamView) { idle::ask(3); }
std::uint64_t capture_of(StreamView) {
  idle::ask();
  return 0;
}
int current_device() {
  idle::ask();
  return 0;
}
void synchronize(StreamView) {}
void ignore_captures() {}
void use_device(int) {}
std::string device_name() { return "idle device"; }
void rest() { std::this_thread::yield(); }

}  // namespace kernels

Stream::Stream() : handle_(&somewhere) {}
Stream::~Stream() = default;
void Stream::synchronize() const {}

}  // namespace tersor
