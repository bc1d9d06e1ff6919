// cp.async: copies from global to shared memory. The bytes arrive when the thread waits for the
// copy's group. Earlier reads are reported as reads of unwritten memory.
#include "tests/ptx_device/decode/decoder.h"
#include "tests/ptx_device/machine/access.h"

#include <algorithm>
#include <cstring>

namespace ptx {
namespace {

/// ins.a and imm: the source. ins.b, v[0] and v[1]: register, width and offset of the destination.
Instruction destination_of(const Instruction& ins) {
  Instruction to = ins;
  to.a = ins.b;
  to.narrow = ins.v[0] != 0;
  to.imm = static_cast<std::int32_t>(ins.v[1]);
  return to;
}

template <unsigned kBytes>
void copy(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const Instruction destination = destination_of(ins);
  Access from(warp, ins, lanes, kBytes, Use::kRead),
      to(warp, destination, lanes, kBytes, Use::kWrite);
  resolve<Space::kGlobal>(from);
  if (settings().check_reads) check_written(from);
  resolve<Space::kShared>(to);
  for (std::uint32_t left = lanes; left != 0; left &= left - 1) {
    const unsigned i = first_lane(left);
    AsyncCopy made{i, warp.groups[i], kBytes, reinterpret_cast<char*>(to.addresses[i]), {}};
    std::memcpy(made.bytes.data(), reinterpret_cast<const char*>(from.addresses[i]), kBytes);
    if (settings().check_reads) std::memset(made.to + to.shadow, 0, kBytes);
    warp.copies.push_back(made);
  }
}

void commit(Warp& warp, const Instruction&, std::uint32_t lanes) {
  for (unsigned i = 0; i < kLanes; ++i) warp.groups[i] += contains(lanes, i);
}

void arrive(Warp& warp, const Instruction& ins, const AsyncCopy& copy) {
  Block& block = *warp.block;
  Access access(warp, ins, 1u << copy.lane, copy.count, Use::kWrite);
  if (settings().check_races)
    check_race(access, copy.lane, static_cast<std::uint64_t>(copy.to - block.shared.data()));
  std::memcpy(copy.to, copy.bytes.data(), copy.count);
  if (settings().check_reads)
    std::memset(copy.to + (block.shared_written.data() - block.shared.data()), 1, copy.count);
}

/// imm: the number of the latest groups that may stay under way. If negative, every copy arrives.
void wait(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const auto arrives = [&](const AsyncCopy& copy) {
    const bool is_due = ins.imm < 0 || copy.group + ins.imm < warp.groups[copy.lane];
    if (!contains(lanes, copy.lane) || !is_due) return false;
    arrive(warp, ins, copy);
    return true;
  };
  std::erase_if(warp.copies, arrives);
}

void decode_copy(Decoder& decoder, Instruction& ins) {
  decoder.refuse_parts({"bulk", "mbarrier", "L2::cache_hint"});
  if (decoder.operands() != 3) decoder.refuse();
  decoder.address(ins, decoder.operand(0));
  ins.b = ins.a;
  ins.v[0] = ins.narrow;
  ins.v[1] = static_cast<std::uint32_t>(ins.imm);
  ins.narrow = false;
  ins.imm = 0;
  decoder.address(ins, decoder.operand(1));
  switch (decoder.operand(2).imm) {
    case 4:
      ins.run = copy<4>;
      break;
    case 8:
      ins.run = copy<8>;
      break;
    case 16:
      ins.run = copy<16>;
      break;
    default:
      decoder.refuse();
  }
}

void decode_cp(Decoder& decoder, Instruction& ins) {
  if (!decoder.has("async")) decoder.refuse();
  if (decoder.has("commit_group")) {
    ins.run = commit;
  } else if (decoder.has("wait_group") || decoder.has("wait_all")) {
    ins.run = wait;
    ins.imm = decoder.has("wait_all") ? -1 : static_cast<std::int64_t>(decoder.operand(0).imm);
  } else {
    decode_copy(decoder, ins);
  }
}

}  // namespace

void add_async_copies(Handlers& handlers) { handlers["cp"] = decode_cp; }

}  // namespace ptx
