// What runs a kernel: instructions decoded for warps of 32 threads whose registers lie side by side,
// and the blocks, warps and groups of threads that are under way.
#pragma once

#include "tests/ptx_device/machine/memory.h"
#include "tests/ptx_device/ptx/module.h"
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

constexpr unsigned kLanes = 32;
constexpr std::uint32_t kAll = 0xffffffffu;

/// Where generic addresses of other spaces lie; no allocation does.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 60;
constexpr std::uint64_t kParamWindow = std::uint64_t{3} << 60;
constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 32;

struct Warp;
struct Ins;
struct Launch;
using Fn = void (*)(Warp&, const Ins&, std::uint32_t lanes);

enum class Kind : std::uint8_t {
  kPlain,
  kBranch,
  kTable,     // brx.idx
  kExit,
  kWarpSync,  // waits for the lanes in `e`
  kBarrier,
  kPause,     // lets others go first
};

enum class Space : std::uint8_t { kGlobal, kShared, kLocal, kParam, kGeneric };
enum class Use : std::uint8_t { kRead, kWrite, kAtomic };

/// Operands are byte offsets into a warp's registers, constants among them.
struct Ins {
  Fn fn = nullptr;
  std::uint32_t d = 0, d2 = 0, a = 0, b = 0, c = 0, e = 0;
  std::int32_t guard = -1;
  bool guard_negated = false;
  bool leader = false;   // others may join here
  bool narrow = false;   // the address is of 32 bits
  bool has_d2 = false, has_c = false;
  Kind kind = Kind::kPlain;
  std::uint8_t how = 0;  // what else an instruction needs to know
  std::uint8_t count = 1;
  std::uint32_t target = 0;
  std::int64_t imm = 0;
  std::uint64_t used = ~std::uint64_t{0};
  std::array<std::uint32_t, 8> v{};
  std::uint32_t line = 0;
  const std::vector<std::uint32_t>* table = nullptr;
};

enum class Special : std::uint8_t {
  kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ, kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY,
  kNctaidZ, kLaneid, kWarpid, kNwarpid, kSmid, kNsmid, kGridid, kMaskEq, kMaskLe, kMaskLt, kMaskGe,
  kMaskGt, kDynamicShared, kTotalShared, kZero,
};

struct Constant {
  std::uint32_t offset;
  std::uint8_t bytes;  // 0: predicate
  std::uint64_t bits;
};
struct SpecialSlot {
  std::uint32_t offset;
  std::uint8_t bytes;
  Special which;
};

struct Kernel {
  std::string name;      // as people write it
  std::vector<Ins> code;
  std::vector<std::string> text;  // a statement each
  std::vector<Constant> constants;
  std::vector<SpecialSlot> specials;
  std::vector<std::vector<std::uint32_t>> tables;
  std::size_t register_bytes = 0;
  std::size_t shared_bytes = 0, local_bytes = 0, param_bytes = 0;
  struct Param {
    std::size_t offset, bytes;
  };
  std::vector<Param> params;
  unsigned max_threads = 0, min_blocks = 0, registers = 0, live_bytes = 0;
  unsigned required[3] = {0, 0, 0};
};

/// Addresses of a module's variables.
using Variables = std::unordered_map<std::string, std::uint64_t>;
/// Throws Unsupported.
std::unique_ptr<Kernel> decode(const Function& function, const Module& module,
                               const Variables& variables);

enum class FaultKind : std::uint8_t { kNone, kAddress, kMisaligned, kInstruction, kFailure, kAssert };

/// What ends a kernel.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string text;
};

struct Group {
  std::uint32_t pc, lanes;
};
struct Parked {
  std::uint32_t pc, lanes, need;
};

struct Block;

struct Warp {
  char* regs = nullptr;
  Block* block = nullptr;
  std::uint32_t index = 0;
  std::uint32_t alive = 0;
  std::vector<Group> ready;
  std::vector<Parked> parked;
  std::uint32_t at_barrier = 0, barrier_pc = 0;
  std::uint32_t sync_count = 0;  // warp-wide operations so far
  const Ins* now = nullptr;
};

struct RangeCache {
  std::uint64_t lo = 1, hi = 0;
  std::int64_t delta = 0, shadow = 0;
};

/// Who touched a byte of shared memory last, for the race check.
struct Touch {
  std::uint16_t writer, reader;            // thread + 1; 0xffff: several readers
  std::uint32_t write_phase, read_phase;   // barriers before
  std::uint32_t write_sync, read_sync;     // warp-wide operations before
};

/// A block under way; kept and used for the next one.
struct Block {
  Launch* launch = nullptr;
  const Kernel* kernel = nullptr;
  std::uint64_t launch_number = ~std::uint64_t{0};
  std::uint64_t index = 0;
  std::uint32_t id[3] = {0, 0, 0};
  unsigned threads = 0;
  std::vector<Warp> warps;
  std::vector<char> registers;
  std::vector<char> shared, shared_written, local, local_written;
  std::vector<Touch> touches;
  std::size_t shared_bytes = 0;
  std::uint32_t phase = 0;
  std::uint64_t random = 1;
  std::uint64_t executed = 0, executed_lanes = 0;
  std::array<RangeCache, 64> cache;

  std::uint64_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }
  void start(Launch& launch, std::uint64_t index);
  /// True when all threads have left.
  bool run(std::uint64_t budget);

 private:
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

  std::uint64_t blocks() const { return std::uint64_t{1} * grid[0] * grid[1] * grid[2]; }
};

/// Runs it to its end, on this thread and helpers.
void run(Launch& launch);

/// For instructions: ends the kernel. `lane`: whose fault it is.
[[noreturn]] void fault(Warp& warp, FaultKind kind, unsigned lane, const std::string& what);
/// Says something about a kernel, once for each place.
void complain(Warp& warp, unsigned lane, const std::string& what);
/// Complaints so far.
std::size_t complaints();

template <class T>
inline T* at(Warp& warp, std::uint32_t offset) {
  return reinterpret_cast<T*>(warp.regs + offset);
}

}  // namespace ptx
