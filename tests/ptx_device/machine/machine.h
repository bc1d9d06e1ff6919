// State of a running kernel: a launch, its blocks, warps of 32 threads with adjacent registers, and
// groups of threads at the same instruction.
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

/// The reason for the end of a kernel.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string text;
};

/// Lanes of a warp at the same instruction.
struct Group {
  std::uint32_t pc, lanes;
};
/// Lanes waiting for the other lanes of a mask.
struct Parked {
  std::uint32_t pc, lanes, need;
};

/// A copy to shared memory that a lane has started and not yet waited for.
struct AsyncCopy {
  unsigned lane;
  std::uint32_t group;  // number of groups that the lane committed before
  unsigned count;
  char* to;
  std::array<char, 16> bytes;
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
  std::uint32_t sync_count = 0;  // number of warp-wide operations so far
  const Instruction* now = nullptr;
  std::vector<AsyncCopy> copies;
  std::array<std::uint32_t, kLanes> groups{};  // committed, by lane
};

/// An allocation found by an instruction.
struct Range {
  std::uint64_t lo = 1, hi = 0;
  std::int64_t delta = 0, shadow = 0;

  bool holds(std::uint64_t address, unsigned bytes) const {
    return address >= lo && address + bytes <= hi;
  }
};
/// Shared by all blocks of a launch on the same host thread.
struct Ranges {
  static constexpr std::size_t kSlots = 64;
  std::array<Range, kSlots> slots;  // by the instruction's slot
  std::array<Range, 4> recent;
  std::size_t next = 0;
};

/// The last accesses to a byte of shared memory, for the race check.
struct Touch {
  std::uint16_t writer, reader;           // thread + 1; 0xffff: several readers
  std::uint32_t write_phase, read_phase;  // number of barriers before
  std::uint32_t write_sync, read_sync;    // number of warp-wide operations before
};

/// A running block. Reused for later blocks.
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
  std::vector<std::uint32_t> order;  // of the warps' time slices
  bool paused = false;               // True if a thread yields to other blocks

  std::uint64_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
  /// True if the registers match the launch.
  bool fits(const Launch& launch) const;
  void start(Launch& launch, std::uint64_t index, Ranges& ranges);
  /// Returns true if all threads have left.
  bool run(std::uint64_t budget);

 private:
  void make_warps();
  void start_warp(Warp& warp);
  void fill_memory(const Launch& launch);
  bool run_warps();
  bool pass_barrier();
  [[noreturn]] void stuck();
};

/// A launch. Workers take blocks from the launch.
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
  std::shared_ptr<LateStores> late;  // null: stores are visible at once

  std::uint64_t blocks() const { return std::uint64_t{1} * grid[0] * grid[1] * grid[2]; }
  /// Keeps the first fault.
  void fail(const Fault& fault);
};

/// Runs a launch to its end, on this thread and helpers.
void run(Launch& launch);

/// Runs a warp until all lanes wait or have left, or for `most` instructions.
void run_warp(Warp& warp, std::uint64_t most);
/// Makes the lanes ready as one or several groups, according to the schedule.
void make_ready(Warp& warp, std::uint32_t pc, std::uint32_t lanes);

/// Ends the kernel with a fault of `lane`.
[[noreturn]] void fault(Warp& warp, FaultKind kind, unsigned lane, const std::string& what);
/// Reports a problem of a kernel, once per instruction.
void complain(Warp& warp, unsigned lane, const std::string& what);
/// Number of reports so far.
std::size_t complaints();

/// A hash of two seeds, never 0.
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

/// The registers of 32 lanes at an offset.
template <class T>
inline T* at(Warp& warp, std::uint32_t offset) {
  return reinterpret_cast<T*>(warp.registers + offset);
}

}  // namespace ptx
