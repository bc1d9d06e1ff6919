// The emulated device stands in for kernels/common/device.cc: it is always there, and its memory is
// what the tests declared.

#include "kernels/common/device.h"
#include "kernels/common/device_memory.h"
#include "kernels/common/event.h"

#include "tests/emulated/emulator.h"

#include <tersor/error.h>
#include <tersor/stream.h>

#include <cstring>
#include <map>
#include <memory>

namespace tersor {
namespace kernels {
namespace {

std::map<std::byte*, std::unique_ptr<emulator::Region>>& owned() {
  static std::map<std::byte*, std::unique_ptr<emulator::Region>> all;
  return all;
}

std::byte* allocate(std::size_t bytes, emulator::Written written) {
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  std::memset(memory, written == emulator::Written::kYes ? 0 : 0xcd, bytes);
  owned()[memory] = std::make_unique<emulator::Region>(
      memory, bytes, written, "an allocation of " + std::to_string(bytes) + " bytes");
  return memory;
}

void release(std::byte* memory) {
  owned().erase(memory);
  std::free(memory);
}

}  // namespace

std::byte* allocate_device(std::size_t bytes) { return allocate(bytes, emulator::Written::kNo); }
void free_device(std::byte* memory) noexcept { release(memory); }
std::byte* allocate_pinned(std::size_t bytes) { return allocate(bytes, emulator::Written::kYes); }
void free_pinned(std::byte* memory) noexcept { release(memory); }

void copy_bytes(void* to, const void* from, std::size_t bytes, StreamView) {
  if (bytes == 0) return;
  std::memcpy(to, from, bytes);
  emulator::mark(to, bytes, emulator::Written::kYes);
}

void zero_bytes(void* memory, std::size_t bytes, StreamView) {
  if (bytes != 0) emulator::clear(memory, bytes);
}

Event::Event() = default;
Event::~Event() = default;
void Event::record(StreamView) {}
void Event::hold(StreamView) const {}
bool Event::done() const { return true; }

bool has_cuda() { return true; }
void require_device() {}

void check_device_pointer(const void* pointer) {
  if (!emulator::is_known(pointer))
    throw InvalidArgument("given as device memory, but the pointer is to the host's");
}

void check_stream(StreamView) {}
std::uint64_t capture_of(StreamView) { return 0; }
int current_device() { return 0; }
void use_device(int) {}

}  // namespace kernels

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::synchronize() const {}

}  // namespace tersor
