// See arena.h. A single range of addresses. The used part is opened and closed as a whole, in a few
// microseconds per kernel.

#include "tests/emulated/arena.h"

#include <csignal>
#include <cstdio>
#include <map>

#include <sys/mman.h>
#include <unistd.h>

namespace tersor::emulator {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{16} << 30;  // of addresses
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kAlignment = 256;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

struct Arena {
  std::byte* begin = nullptr;
  std::size_t used_bytes = 0;  // whole pages
  unsigned accesses = 0;
  std::map<std::size_t, std::size_t> allocations;  // offset -> end
};

Arena& arena();

/// Restricted to async-signal-safe calls. Returning repeats the access, which then ends the
/// program.
void explain_fault(int, siginfo_t* fault, void*) {
  const auto* address = static_cast<const std::byte*>(fault->si_addr);
  if (address >= arena().begin && address < arena().begin + kArenaBytes) {
    constexpr char kText[] = "the host touches memory of the emulated device\n";
    (void)!write(STDERR_FILENO, kText, sizeof kText - 1);
  }
  std::signal(SIGSEGV, SIG_DFL);
}

Arena reserve() {
  void* begin =
      mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) return {};
  struct sigaction action {};
  action.sa_sigaction = explain_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  return {.begin = static_cast<std::byte*>(begin)};
}

Arena& arena() {
  static Arena only = reserve();
  return only;
}

void protect(std::size_t first, std::size_t last, int protection) {
  if (first < last) mprotect(arena().begin + first, last - first, protection);
}

/// The first sufficient gap. An unused unit follows each allocation.
std::size_t find_gap(std::size_t bytes) {
  std::size_t place = 0;
  for (const auto& [first, end] : arena().allocations) {
    if (place + bytes <= first) break;
    place = round_up(end, kAlignment) + kAlignment;
  }
  return place;
}

}  // namespace

std::byte* allocate_in_arena(std::size_t bytes) {
  const std::size_t first = find_gap(bytes + kAlignment);
  if (arena().begin == nullptr || bytes > kArenaBytes || first > kArenaBytes - bytes)
    return nullptr;
  arena().allocations[first] = first + bytes;
  const std::size_t used = round_up(first + bytes, kPageBytes);
  if (arena().accesses != 0) protect(arena().used_bytes, used, PROT_READ | PROT_WRITE);
  if (used > arena().used_bytes) arena().used_bytes = used;
  return arena().begin + first;
}

void release_in_arena(std::byte* memory) {
  arena().allocations.erase(static_cast<std::size_t>(memory - arena().begin));
}

ArenaAccess::ArenaAccess() {
  if (arena().accesses++ == 0) protect(0, arena().used_bytes, PROT_READ | PROT_WRITE);
}

ArenaAccess::~ArenaAccess() {
  if (--arena().accesses == 0) protect(0, arena().used_bytes, PROT_NONE);
}

}  // namespace tersor::emulator
