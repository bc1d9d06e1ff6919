// A kernel that was decoded: for each instruction the function that does it for a whole warp, and
// where its operands lie among the warp's registers.
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
constexpr std::uint32_t kNoPlace = ~0u;  // of an operand: it is not there

/// Where generic addresses of other spaces lie; no allocation does.
constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 60;
constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 60;
constexpr std::uint64_t kParamWindow = std::uint64_t{3} << 60;
constexpr std::uint64_t kWindowBytes = std::uint64_t{1} << 32;

struct Warp;
struct Instruction;
/// Does an instruction for those lanes of a warp.
using WarpFunction = void (*)(Warp&, const Instruction&, std::uint32_t lanes);

/// What an instruction means for the order in which instructions run.
enum class Kind : std::uint8_t {
  kPlain,
  kBranch,
  kTable,  // brx.idx
  kExit,
  kWarpSync,  // waits for the lanes in `e`
  kBarrier,
  kPause,  // lets others go first
};

enum class Space : std::uint8_t { kGlobal, kShared, kLocal, kParam, kGeneric };
enum class Use : std::uint8_t { kRead, kWrite, kAtomic };

/// Operands are byte offsets into a warp's registers, constants among them.
struct Instruction {
  WarpFunction run = nullptr;
  WarpFunction inner = nullptr;  // what `run` calls, where it only prepares
  std::uint32_t d = 0, d2 = 0, a = 0, b = 0, c = 0, e = 0;
  std::int32_t guard = -1;
  bool guard_negated = false;
  bool leader = false;  // others may join here
  bool narrow = false;  // the address is of 32 bits
  bool has_d2 = false, has_c = false;
  bool strong = false;  // of an access: others may watch it
  Kind kind = Kind::kPlain;
  std::uint8_t how = 0;  // what else an instruction needs to know
  std::uint8_t count = 1;
  std::uint16_t slot = 0;  // of the allocation that it found last
  std::uint32_t target = 0;
  std::int64_t imm = 0;
  std::uint64_t used = ~std::uint64_t{0};
  std::array<std::uint32_t, 8> v{};
  std::uint32_t line = 0;
};

/// What the hardware tells a thread.
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
  std::string name;  // as people write it
  std::vector<Instruction> code;
  std::vector<std::string> text;  // a statement each
  std::vector<SpecialSlot> specials;
  std::vector<char> image;  // a warp's registers before it runs: its constants
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
