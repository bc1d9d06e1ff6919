// The emulated device replaces kernels/device/{device,device_memory,event}.cc. Its memory is
// allocated here or declared by tests. Its streams are defined in streams.h.

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"

#include "tests/emulated/arena.h"
#include "tests/emulated/schedule.h"

#include <tersor/error.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>

namespace tersor {
namespace kernels {
namespace {

using emulator::Guard;
using emulator::lock_device;

constexpr int kDevices = 8;
constexpr int kPinned = -1;
thread_local int device_of_thread = 0;

struct Allocation {
  int device;  // kPinned: pinned host memory
  std::size_t bytes;
};

std::map<const std::byte*, Allocation>& allocations() {
  static std::map<const std::byte*, Allocation> all;
  return all;
}

std::byte* find_memory(std::size_t bytes, int device) {
  if (device != kPinned) return emulator::allocate_in_arena(bytes);
  return static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
}

std::byte* allocate(std::size_t bytes, int device, int fill) {
  const Guard guard = lock_device();
  emulator::forbid_in_capture("allocating memory");
  count(&emulator::Counters::allocations);
  std::byte* memory = find_memory(bytes, device);
  if (memory == nullptr) throw OutOfMemoryError("no " + std::to_string(bytes) + " emulated bytes");
  const emulator::ArenaAccess access;
  std::memset(memory, fill, bytes);
  allocations()[memory] = {device, bytes};
  return memory;
}

/// Waits for the device like cudaFree. A capture forbids this call, too.
void release(std::byte* memory) {
  Guard guard = lock_device();
  if (memory == nullptr || emulator::break_captures("freeing memory")) return;
  count(&emulator::Counters::host_waits);
  emulator::drain(guard);
  const bool is_pinned = allocations().at(memory).device == kPinned;
  allocations().erase(memory);
  if (is_pinned)
    std::free(memory);
  else
    emulator::release_in_arena(memory);
}

const Allocation* find_allocation(const void* pointer) {
  const auto* address = static_cast<const std::byte*>(pointer);
  const auto next = allocations().upper_bound(address);
  if (next == allocations().begin()) return nullptr;
  const auto& [begin, allocation] = *std::prev(next);
  return address < begin + allocation.bytes ? &allocation : nullptr;
}

/// Throws if a stream would access memory other than device memory and pinned memory.
void check_known(const void* pointer, std::size_t bytes, const std::string& what) {
  const Allocation* found = find_allocation(pointer);
  if (found == nullptr ||
      find_allocation(static_cast<const std::byte*>(pointer) + bytes - 1) != found)
    throw emulator::EmulatorError(what + " of " + std::to_string(bytes) +
                                  " bytes: memory that is neither the device's nor pinned");
}

emulator::EventState& state_of(void* event) { return *static_cast<emulator::EventState*>(event); }

std::string other_device(int device) {
  return " device " + std::to_string(device) + ", but the current device is " +
         std::to_string(device_of_thread) + "; call cudaSetDevice first";
}

}  // namespace

std::byte* allocate_device(std::size_t bytes) { return allocate(bytes, device_of_thread, 0xcd); }
void free_device(std::byte* memory) noexcept { release(memory); }
std::byte* allocate_pinned(std::size_t bytes) { return allocate(bytes, kPinned, 0); }
void free_pinned(std::byte* memory) noexcept { release(memory); }

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  emulator::launch(stream, "copy of " + std::to_string(bytes) + " bytes", [=] {
    check_known(to, bytes, "a copy");
    check_known(from, bytes, "a copy");
    std::memcpy(to, from, bytes);
  });
}

void zero_bytes(void* memory, std::size_t bytes, StreamView stream) {
  if (bytes == 0) return;
  emulator::launch(stream, std::to_string(bytes) + " zeros", [=] {
    check_known(memory, bytes, "zeros");
    std::memset(memory, 0, bytes);
  });
}

Event::Event() : handle_(new emulator::EventState{device_of_thread, nullptr}) {}
Event::~Event() { delete static_cast<emulator::EventState*>(handle_); }

void Event::record(StreamView stream) { emulator::record(stream, state_of(handle_)); }
void Event::hold(StreamView stream) const { emulator::hold(stream, state_of(handle_).last); }
bool Event::done() const { return emulator::is_done(state_of(handle_)); }

bool has_cuda() { return true; }
void require_device() {}

void check_device_pointer(const void* pointer) {
  const Guard guard = lock_device();
  const Allocation* found = find_allocation(pointer);
  if (found == nullptr)
    throw InvalidArgumentError("device memory is expected, but the pointer is to host memory");
  if (found->device != kPinned && found->device != device_of_thread)
    throw InvalidArgumentError("the memory is on" + other_device(found->device));
}

void check_stream(StreamView stream) {
  const Guard guard = lock_device();
  if (stream.handle == nullptr || capture_of(stream) != 0) return;
  const int device = emulator::state_of(stream).device;
  if (device != device_of_thread)
    throw InvalidArgumentError("the stream belongs to" + other_device(device));
}

std::uint64_t capture_of(StreamView stream) {
  const Guard guard = lock_device();
  return stream.handle == nullptr ? 0 : emulator::state_of(stream).capture;
}

void synchronize(StreamView stream) { emulator::synchronize(stream); }

void ignore_captures() {}  // captures bind only their own thread

int current_device() { return device_of_thread; }
std::string device_name() { return "emulated device"; }

void use_device(int device) {
  if (device < 0 || device >= kDevices)
    throw CudaError("choosing a device: there is no device " + std::to_string(device));
  device_of_thread = device;
}

void rest() {
  if (!emulator::run_one()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

}  // namespace kernels

Stream::Stream() : handle_(&emulator::add_stream("", kernels::current_device())) {}
Stream::~Stream() {
  if (handle_ != nullptr) emulator::release_stream(*static_cast<emulator::StreamState*>(handle_));
}
void Stream::synchronize() const { emulator::synchronize(view()); }

}  // namespace tersor
