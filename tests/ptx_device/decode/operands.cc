// The offsets of a statement's operands. See decoder.h.
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/machine/machine.h"

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

const std::unordered_map<std::string, Special>& specials() {
  static const std::unordered_map<std::string, Special> known = {
      {"%tid.x", Special::kTidX},
      {"%tid.y", Special::kTidY},
      {"%tid.z", Special::kTidZ},
      {"%ntid.x", Special::kNtidX},
      {"%ntid.y", Special::kNtidY},
      {"%ntid.z", Special::kNtidZ},
      {"%ctaid.x", Special::kCtaidX},
      {"%ctaid.y", Special::kCtaidY},
      {"%ctaid.z", Special::kCtaidZ},
      {"%nctaid.x", Special::kNctaidX},
      {"%nctaid.y", Special::kNctaidY},
      {"%nctaid.z", Special::kNctaidZ},
      {"%laneid", Special::kLaneid},
      {"%warpid", Special::kWarpid},
      {"%nwarpid", Special::kNwarpid},
      {"%smid", Special::kSmid},
      {"%nsmid", Special::kNsmid},
      {"%gridid", Special::kGridid},
      {"%lanemask_eq", Special::kMaskEq},
      {"%lanemask_le", Special::kMaskLe},
      {"%lanemask_lt", Special::kMaskLt},
      {"%lanemask_ge", Special::kMaskGe},
      {"%lanemask_gt", Special::kMaskGt},
      {"%dynamic_smem_size", Special::kDynamicShared},
      {"%total_smem_size", Special::kTotalShared}};
  return known;
}

bool starts_with(const std::string& word, const char* begin) { return word.rfind(begin, 0) == 0; }

}  // namespace

void Decoder::refuse(const std::string& why) const {
  throw Unsupported(why + ": \"" + statement_->text + "\", line " +
                    std::to_string(statement_->line) + " of the PTX, in " + kernel_->name);
}

void Decoder::refuse_parts(std::initializer_list<const char*> parts) const {
  for (const char* part : parts)
    if (has(part)) refuse(std::string(".") + part + " is not done here");
}

bool Decoder::has(const char* part) const {
  return std::find(op().begin(), op().end(), part) != op().end();
}

std::uint8_t Decoder::which(std::initializer_list<const char*> words) const {
  const auto found =
      std::find_if(words.begin(), words.end(), [&](const char* word) { return has(word); });
  return static_cast<std::uint8_t>(found - words.begin());
}

std::uint32_t Decoder::add_bytes(std::size_t bytes) {
  const std::size_t offset = (kernel_->register_bytes + 63) / 64 * 64;
  kernel_->register_bytes = offset + bytes;
  return static_cast<std::uint32_t>(offset);
}

std::uint32_t Decoder::constant(std::uint64_t bits, unsigned bytes) {
  if (bytes != 0 && bytes < 8) bits &= (std::uint64_t{1} << (8 * bytes)) - 1;
  const auto [slot, is_new] = constants_.try_emplace({bits, bytes}, 0);
  if (!is_new) return slot->second;
  return slot->second = add_bytes(bytes == 0 ? 4 : bytes * kLanes);
}

void Decoder::fill_image() {
  kernel_->image.assign(kernel_->register_bytes, 0);
  for (const auto& [constant, offset] : constants_) {
    const auto [bits, bytes] = constant;
    char* to = kernel_->image.data() + offset;
    if (bytes == 0) std::memset(to, bits != 0 ? 0xff : 0, 4);
    for (unsigned lane = 0; lane < kLanes; ++lane) std::memcpy(to + lane * bytes, &bits, bytes);
  }
}

std::uint32_t Decoder::special(const std::string& name, unsigned bytes) {
  if (name == "WARP_SZ") return constant(kLanes, bytes);
  const auto found = specials().find(name);
  if (found == specials().end()) refuse("unknown register " + name);
  const auto [slot, is_new] = specials_.try_emplace({name, bytes}, 0);
  if (!is_new) return slot->second;
  slot->second = add_bytes(bytes * kLanes);
  kernel_->specials.push_back({slot->second, static_cast<std::uint8_t>(bytes), found->second});
  return slot->second;
}

const Operand& Decoder::operand(std::size_t i) const {
  if (i >= operands()) refuse("too few operands");
  return statement_->operands[i];
}

unsigned Decoder::register_bytes(const Operand& operand) const {
  if (operand.kind != Operand::kReg) refuse("register expected");
  return function_.registers[operand.reg].bytes;
}

const Place& Decoder::symbol(const Operand& operand) const {
  const auto found = symbols_.find(operand.name);
  if (found == symbols_.end()) refuse("unknown name " + operand.name);
  return found->second;
}

std::uint32_t Decoder::in(const Operand& operand, unsigned bytes) {
  switch (operand.kind) {
    case Operand::kReg:
      if (register_bytes(operand) != bytes)
        refuse("a register of " + std::to_string(register_bytes(operand)) + " bytes, " +
               std::to_string(bytes) + " expected");
      return offsets_[operand.reg];
    case Operand::kImm:
      return constant(operand.imm, bytes);
    case Operand::kSymbol:
      return constant(symbol(operand).value + operand.imm, bytes);
    case Operand::kSpecial:
      return special(operand.name, bytes);
    default:
      refuse("operand");
  }
}

std::uint32_t Decoder::out(std::size_t i, unsigned bytes) const {
  const Operand& to = operand(i);
  if (to.kind == Operand::kSink) return kNoPlace;
  if (to.kind != Operand::kReg || register_bytes(to) != bytes)
    refuse("a register of " + std::to_string(bytes) + " bytes expected");
  return offsets_[to.reg];
}

void Decoder::second_out(Instruction& ins) const {
  if (operand(0).reg2 < 0) return;
  ins.has_d2 = true;
  ins.d2 = offsets_[operand(0).reg2];
}

void Decoder::address(Instruction& ins, const Operand& at) {
  if (at.kind != Operand::kMem) refuse("address expected");
  ins.slot = static_cast<std::uint16_t>(accesses_++ % Ranges::kSlots);
  if (at.name.empty() && at.reg < 0) {
    ins.a = constant(at.imm, 8);
    return;
  }
  ins.imm = static_cast<std::int64_t>(at.imm);
  if (!at.name.empty()) {
    ins.a = constant(symbol(at).value, 8);
  } else {
    ins.narrow = function_.registers[at.reg].bytes == 4;
    ins.a = offsets_[at.reg];
  }
}

Space Decoder::space_of(const Operand& address) const {
  for (const std::string& part : op()) {
    if (part == "global" || part == "const") return Space::kGlobal;
    if (part == "shared::cluster") refuse();
    if (starts_with(part, "shared")) return Space::kShared;
    if (part == "local") return Space::kLocal;
    if (starts_with(part, "param")) return Space::kParam;
  }
  const bool is_named = address.kind == Operand::kMem && !address.name.empty();
  return is_named ? symbol(address).space : Space::kGeneric;
}

bool Decoder::fix_param(Instruction& ins, const Operand& address) const {
  if (address.name.empty()) return false;
  const std::uint64_t begin = symbol(address).value + address.imm, all = ins.count * bytes();
  if (begin % all != 0 || begin + all > kernel_->param_bytes) return false;
  ins.imm = static_cast<std::int64_t>(begin);
  return true;
}

std::uint32_t Decoder::label(const std::string& name) const {
  const auto found = function_.labels.find(name);
  if (found == function_.labels.end()) refuse("unknown label " + name);
  return found->second;
}

std::size_t Decoder::table(const std::string& name) {
  const auto found = function_.tables.find(name);
  if (found == function_.tables.end()) refuse("unknown table " + name);
  std::vector<std::uint32_t> targets;
  for (const std::string& target : found->second) targets.push_back(label(target));
  kernel_->tables.push_back(std::move(targets));
  return kernel_->tables.size() - 1;
}

WarpFunction Decoder::known(WarpFunction function) const {
  if (function == nullptr) refuse();
  return function;
}

void Decoder::same_bytes(Instruction& ins, WarpFunction function, std::size_t inputs) {
  ins.run = known(function);
  ins.d = out(0, bytes());
  ins.a = in(1, bytes());
  if (inputs > 1) ins.b = in(2, bytes());
  if (inputs > 2) ins.c = in(3, bytes());
}

bool writes_first(const Statement& statement) {
  static const char* const kWriteNothing[] = {
      "st",        "red", "bra",  "brx",     "prefetch", "prefetchu", "membar", "fence",
      "nanosleep", "cp",  "exit", "discard", "ret",      "trap",      "call"};
  const std::string& opcode = statement.op[0];
  const auto& op = statement.op;
  if (opcode == "bar" || opcode == "barrier")
    return std::find(op.begin(), op.end(), "red") != op.end();
  return std::find(std::begin(kWriteNothing), std::end(kWriteNothing), opcode) ==
         std::end(kWriteNothing);
}

}  // namespace ptx
