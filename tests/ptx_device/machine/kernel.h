// A decoded kernel: each instruction has a function for a whole warp, and the offsets of its
// operands in the warp's registers.
#pragma once

#include "tests/ptx_device/ptx/module.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace ptx {

constexpr unsigned kLanes = 32;
constexpr std::uint32_t kAll = 0xffffffffu;
constexpr std::uint32_t kNoPlace = ~0u;  // the offset of an absent operand

/// Base addresses of the generic windows of other spaces; no allocation uses these addresses.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 60;
constexpr std::uint64_t kParamWindow = std::uint64_t{3} << 60;
constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 32;

struct Warp;
struct Instruction;
/// Executes an instruction for some lanes of a warp.
using WarpFunction = void (*)(Warp&, const Instruction&, std::uint32_t lanes);

/// The effect of an instruction on the order of execution.
enum class Kind : std::uint8_t {
  kPlain,
  kBranch,
  kTable,  // brx.idx
  kExit,
  kWarpSync,  // waits for the lanes in `e`
  kBarrier,
  kPause,  // yields to other warps
};

enum class Space : std::uint8_t { kGlobal, kShared, kLocal, kParam, kGeneric };
enum class Use : std::uint8_t { kRead, kWrite, kAtomic };

/// Operands, including constants, are byte offsets into a warp's registers.
struct Instruction {
  WarpFunction run = nullptr;
  WarpFunction inner = nullptr;  // the function called by `run`, if `run` only prepares
  std::uint32_t d = 0, d2 = 0, a = 0, b = 0, c = 0, e = 0;
  std::int32_t guard = -1;
  bool guard_negated = false;
  bool leader = false;  // groups may join here
  bool narrow = false;  // the address has 32 bits
  bool has_d2 = false, has_c = false;
  bool strong = false;  // the access is visible to other threads
  Kind kind = Kind::kPlain;
  std::uint8_t how = 0;  // additional information, by instruction
  std::uint8_t count = 1;
  std::uint16_t slot = 0;  // of the allocation found last
  std::uint32_t target = 0;
  std::int64_t imm = 0;
  std::uint64_t used = ~std::uint64_t{0};
  std::array<std::uint32_t, 8> v{};
  std::uint32_t line = 0;
};

/// Special registers of a thread.
enum class Special : std::uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kSmid,
  kNsmid,
  kGridid,
  kMaskEq,
  kMaskLe,
  kMaskLt,
  kMaskGe,
  kMaskGt,
  kDynamicShared,
  kTotalShared,
};

struct SpecialSlot {
  std::uint32_t offset;
  std::uint8_t bytes;
  Special which;
};

struct Kernel {
  std::string name;  // demangled
  std::vector<Instruction> code;
  std::vector<std::string> text;  // a statement per instruction
  std::vector<SpecialSlot> specials;
  std::vector<char> image;  // initial registers of a warp, with constants
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

}  // namespace ptx
