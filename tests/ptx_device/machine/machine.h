// What is under way while a kernel runs: a launch, its blocks, their warps of 32 threads whose
// registers lie side by side, and the groups of threads that are at one place.
#pragma once

#include "tests/ptx_device/machine/kernel.h"
#include "tests/ptx_device/machine/memory.h"
#include "tests/ptx_device/settings.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace ptx {

enum class FaultKind : std::uint8_t {
  kNone,
  kAddress,
  kMisaligned,
  kInstruction,
  kFailure,
  kAssert
};

/// What ends a kernel.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string text;
};

/// Lanes of a warp that are at one instruction.
struct Group {
  std::uint32_t pc, lanes;
};
/// Lanes that wait for the others of a mask.
struct Parked {
  std::uint32_t pc, lanes, need;
};

struct Block;
struct Launch;
class LateStores;

struct Warp {
  char* registers = nullptr;
  Block* block = nullptr;
  std::uint32_t index = 0;
  std::uint32_t alive = 0;
  std::vector<Group> ready;
  std::vector<Parked> parked;
  std::uint32_t at_barrier = 0, barrier_pc = 0;
  std::uint32_t sync_count = 0;  // warp-wide operations so far
  const Instruction* now = nullptr;
};

/// An allocation that an instruction found.
struct Range {
  std::uint64_t lo = 1, hi = 0;
  std::int64_t delta = 0, shadow = 0;

  bool holds(std::uint64_t address, unsigned bytes) const {
    return address >= lo && address + bytes <= hi;
  }
};
/// Of all blocks of a launch that a thread of the host runs.
struct Ranges {
  static constexpr std::size_t kSlots = 64;
  std::array<Range, kSlots> slots;  // by the instruction's slot
  std::array<Range, 4> recent;
  std::size_t next = 0;
};

/// Who touched a byte of shared memory last, for the race check.
struct Touch {
  std::uint16_t writer, reader;           // thread + 1; 0xffff: several readers
  std::uint32_t write_phase, read_phase;  // barriers before
  std::uint32_t write_sync, read_sync;    // warp-wide operations before
};

/// A block under way; kept and used for the next one.
struct Block {
  Launch* launch = nullptr;
  const Kernel* kernel = nullptr;
  std::uint64_t index = 0;
  std::uint32_t id[3] = {0, 0, 0};
  unsigned threads = 0, shape[3] = {0, 0, 0};
  std::vector<Warp> warps;
  std::vector<char> registers;
  std::vector<char> shared, shared_written, local, local_written;
  std::vector<Touch> touches;
  std::size_t shared_bytes = 0;
  std::uint32_t phase = 0;
  std::uint64_t random = 1;
  std::uint64_t executed = 0, executed_lanes = 0;
  Ranges* ranges = nullptr;
  std::vector<std::uint32_t> order;  // of the warps' turns
  bool paused = false;               // a thread lets other blocks go first

  std::uint64_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
  /// Whether its registers are those that the launch needs.
  bool fits(const Launch& launch) const;
  void start(Launch& launch, std::uint64_t index, Ranges& ranges);
  /// True when all threads have left.
  bool run(std::uint64_t budget);

 private:
  void make_warps();
  void start_warp(Warp& warp);
  void fill_memory(const Launch& launch);
  bool run_warps();
  bool pass_barrier();
  [[noreturn]] void stuck();
};

/// One launch; blocks are drawn from it.
struct Launch {
  const Kernel* kernel = nullptr;
  unsigned grid[3] = {1, 1, 1}, block[3] = {1, 1, 1};
  std::size_t dynamic_shared = 0;
  std::vector<char> params;
  std::uint64_t number = 0;

  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::atomic<std::uint64_t> executed{0}, executed_lanes{0};
  std::mutex mutex;
  Fault fault;
  std::shared_ptr<LateStores> late;  // null: stores are seen at once

  std::uint64_t blocks() const { return std::uint64_t{1} * grid[0] * grid[1] * grid[2]; }
  /// The first fault is kept.
  void fail(const Fault& fault);
};

/// Runs it to its end, on this thread and helpers.
void run(Launch& launch);

/// Runs a warp until all its lanes wait or have left, or it has done `most` instructions.
void run_warp(Warp& warp, std::uint64_t most);
/// The lanes of a group become one or more groups, as the schedule says.
void make_ready(Warp& warp, std::uint32_t pc, std::uint32_t lanes);

/// For instructions: ends the kernel. `lane`: whose fault it is.
[[noreturn]] void fault(Warp& warp, FaultKind kind, unsigned lane, const std::string& what);
/// Says something about a kernel, once for each place.
void complain(Warp& warp, unsigned lane, const std::string& what);
/// Complaints so far.
std::size_t complaints();

/// What depends on a seed alone, and is never 0.
inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 29;
  return x | 1;
}

inline bool contains(std::uint32_t lanes, unsigned lane) { return ((lanes >> lane) & 1) != 0; }
inline unsigned first_lane(std::uint32_t lanes) {
  return static_cast<unsigned>(__builtin_ctz(lanes));
}

/// The registers of 32 lanes that begin at an offset.
template <class T>
inline T* at(Warp& warp, std::uint32_t offset) {
  return reinterpret_cast<T*>(warp.registers + offset);
}

}  // namespace ptx
