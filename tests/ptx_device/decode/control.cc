// Branches, barriers, fences, and statements without effect.
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/decode/whole.h"
#include "tests/ptx_device/machine/machine.h"

#include <atomic>

namespace ptx {
namespace {

void nothing(Warp&, const Instruction&, std::uint32_t) {}

void fence(Warp&, const Instruction&, std::uint32_t) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void trap(Warp& warp, const Instruction&, std::uint32_t lanes) {
  fault(warp, FaultKind::kInstruction, first_lane(lanes), "trap");
}

template <WarpFunction kFunction>
void decode_plain(Decoder&, Instruction& ins) {
  ins.run = kFunction;
}

void decode_fence(Decoder& decoder, Instruction& ins) {
  ins.run = settings().late_stores ? late_fence(decoder) : fence;
}

void decode_branch(Decoder& decoder, Instruction& ins) {
  ins.kind = Kind::kBranch;
  ins.target = decoder.label(decoder.operand(0).name);
}

void decode_table(Decoder& decoder, Instruction& ins) {
  ins.kind = Kind::kTable;
  ins.a = decoder.in(0, 4);
  ins.imm = static_cast<std::int64_t>(decoder.table(decoder.operand(1).name));
}

void decode_exit(Decoder&, Instruction& ins) { ins.kind = Kind::kExit; }

void decode_pause(Decoder&, Instruction& ins) {
  ins.run = nothing;
  ins.kind = Kind::kPause;
}

bool is_number_0(const Operand& operand) {
  return operand.kind == Operand::kImm && operand.imm == 0;
}

/// how: 1 and, 2 or, 3 popc (+4: the predicate is negated).
void decode_barrier_vote(Decoder& decoder, Instruction& ins) {
  if (decoder.operands() != 3 || !is_number_0(decoder.operand(1))) decoder.refuse();
  ins.how = static_cast<std::uint8_t>(decoder.which({"and", "or"}) + 1);
  ins.d = decoder.out(0, ins.how == 3 ? 4 : 0);
  ins.a = decoder.in(2, 0);
  if (decoder.operand(2).negated) ins.how |= 4;
}

void decode_warp_barrier(Decoder& decoder, Instruction& ins) {
  ins.kind = Kind::kWarpSync;
  ins.run = settings().late_stores ? late_warp_barrier() : nothing;
  ins.count = 0;
  ins.e = decoder.in(0, 4);
}

void decode_barrier(Decoder& decoder, Instruction& ins) {
  if (decoder.has("warp")) return decode_warp_barrier(decoder, ins);
  decoder.refuse_parts({"cluster", "arrive"});
  ins.kind = Kind::kBarrier;
  ins.run = nothing;
  if (decoder.has("red")) return decode_barrier_vote(decoder, ins);
  if (decoder.operands() != 1 || !is_number_0(decoder.operand(0)))
    decoder.refuse("a barrier other than number 0 of all threads");
}

}  // namespace

void add_control(Handlers& handlers) {
  handlers["bra"] = decode_branch;
  handlers["brx"] = decode_table;
  handlers["bar"] = handlers["barrier"] = decode_barrier;
  handlers["ret"] = handlers["exit"] = decode_exit;
  handlers["membar"] = handlers["fence"] = decode_fence;
  handlers["trap"] = handlers["brkpt"] = decode_plain<trap>;
  handlers["nanosleep"] = decode_pause;
  for (const char* hint : {"prefetch", "prefetchu", "discard", "applypriority", "griddepcontrol"})
    handlers[hint] = decode_plain<nothing>;
}

}  // namespace ptx
