// A block: initial registers of its threads, time slices of its warps, and barriers.
#include "tests/ptx_device/machine/machine.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>
#include <utility>

namespace ptx {
namespace {

constexpr std::uint64_t kTurn = 80'000;  // instructions of a warp before another warp runs
constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

unsigned threads_of(const Launch& launch) {
  return launch.block[0] * launch.block[1] * launch.block[2];
}

std::uint64_t value_of(Special which, const Warp& warp, unsigned lane) {
  const Block& block = *warp.block;
  const unsigned *shape = block.launch->block, *grid = block.launch->grid;
  const unsigned thread = warp.index * kLanes + lane;
  const auto multiprocessors = static_cast<unsigned>(settings().multiprocessors);
  switch (which) {
    case Special::kTidX:
      return thread % shape[0];
    case Special::kTidY:
      return thread / shape[0] % shape[1];
    case Special::kTidZ:
      return thread / shape[0] / shape[1];
    case Special::kNtidX:
      return shape[0];
    case Special::kNtidY:
      return shape[1];
    case Special::kNtidZ:
      return shape[2];
    case Special::kCtaidX:
      return block.id[0];
    case Special::kCtaidY:
      return block.id[1];
    case Special::kCtaidZ:
      return block.id[2];
    case Special::kNctaidX:
      return grid[0];
    case Special::kNctaidY:
      return grid[1];
    case Special::kNctaidZ:
      return grid[2];
    case Special::kLaneid:
      return lane;
    case Special::kWarpid:
      return warp.index;
    case Special::kNwarpid:
      return block.warps.size();
    case Special::kSmid:
      return block.index % multiprocessors;
    case Special::kNsmid:
      return multiprocessors;
    case Special::kGridid:
      return block.launch->number;
    case Special::kMaskEq:
      return 1u << lane;
    case Special::kMaskLe:
      return kAll >> (31 - lane);
    case Special::kMaskLt:
      return (1u << lane) - 1;
    case Special::kMaskGe:
      return kAll << lane;
    case Special::kMaskGt:
      return lane == 31 ? 0 : kAll << (lane + 1);
    case Special::kDynamicShared:
      return block.launch->dynamic_shared;
    case Special::kTotalShared:
      return block.shared_bytes;
  }
  return 0;
}

/// True if the value differs between the blocks of a launch.
bool is_of_block(Special which) {
  switch (which) {
    case Special::kCtaidX:
    case Special::kCtaidY:
    case Special::kCtaidZ:
    case Special::kNctaidX:
    case Special::kNctaidY:
    case Special::kNctaidZ:
    case Special::kSmid:
    case Special::kGridid:
    case Special::kDynamicShared:
    case Special::kTotalShared:
      return true;
    default:
      return false;
  }
}

void fill_each(Warp& warp, const SpecialSlot& slot) {
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const std::uint64_t value = value_of(slot.which, warp, lane);
    std::memcpy(warp.registers + slot.offset + lane * slot.bytes, &value, slot.bytes);
  }
}

/// Sets equal values in all lanes.
void fill_same(Warp& warp, const SpecialSlot& slot) {
  const std::uint64_t value = value_of(slot.which, warp, 0);
  if (slot.bytes == 4)
    std::fill_n(at<std::uint32_t>(warp, slot.offset), kLanes, static_cast<std::uint32_t>(value));
  else if (slot.bytes == 8)
    std::fill_n(at<std::uint64_t>(warp, slot.offset), kLanes, value);
  else
    fill_each(warp, slot);
}

/// The votes of the lanes at a barrier, for bar.red.
struct Vote {
  bool all = true, any = false;
  unsigned count = 0;
};

void add_votes(Warp& warp, const Instruction& ins, Vote& vote) {
  if ((ins.how & 3) == 0) return;
  std::uint32_t yes = *at<std::uint32_t>(warp, ins.a);
  if ((ins.how & 4) != 0) yes = ~yes;
  yes &= warp.at_barrier;
  vote.all = vote.all && yes == warp.at_barrier;
  vote.any = vote.any || yes != 0;
  vote.count += static_cast<unsigned>(__builtin_popcount(yes));
}

/// how: 0 plain, 1 and, 2 or, 3 popc.
void give_result(Warp& warp, const Instruction& ins, const Vote& vote) {
  const unsigned how = ins.how & 3;
  auto* to = at<std::uint32_t>(warp, ins.d);
  if (how == 3) {
    for (unsigned i = 0; i < kLanes; ++i)
      if (contains(warp.at_barrier, i)) to[i] = vote.count;
  } else if (how != 0) {
    const bool yes = how == 1 ? vote.all : vote.any;
    *to = (*to & ~warp.at_barrier) | (yes ? warp.at_barrier : 0);
  }
}

}  // namespace

bool Block::fits(const Launch& made) const {
  return kernel == made.kernel && std::equal(shape, shape + 3, made.block);
}

void Block::start(Launch& made, std::uint64_t at_index, Ranges& found) {
  const bool other = !fits(made);
  std::copy(made.block, made.block + 3, shape);
  launch = &made;
  ranges = &found;
  kernel = made.kernel;
  index = at_index;
  id[0] = static_cast<std::uint32_t>(index % made.grid[0]);
  id[1] = static_cast<std::uint32_t>(index / made.grid[0] % made.grid[1]);
  id[2] = static_cast<std::uint32_t>(index / made.grid[0] / made.grid[1]);
  threads = threads_of(made);
  random = mix(settings().seed * 31 + made.number, index);
  phase = 1;
  executed = executed_lanes = 0;
  paused = false;
  fill_memory(made);
  if (other) make_warps();
  for (Warp& warp : warps) start_warp(warp);
}

void Block::make_warps() {
  const std::size_t count = (threads + kLanes - 1) / kLanes;
  warps.clear();
  warps.resize(count);
  registers.resize(count * kernel->register_bytes + kAlignment);
  char* base = registers.data();
  base += (kAlignment - reinterpret_cast<std::uintptr_t>(base) % kAlignment) % kAlignment;
  for (std::size_t i = 0; i < count; ++i) {
    warps[i].block = this;
    warps[i].index = static_cast<std::uint32_t>(i);
    warps[i].registers = base + i * kernel->register_bytes;
    std::copy(kernel->image.begin(), kernel->image.end(), warps[i].registers);
    for (const SpecialSlot& slot : kernel->specials)
      if (!is_of_block(slot.which)) fill_each(warps[i], slot);
  }
}

void Block::start_warp(Warp& warp) {
  const unsigned lanes = std::min(kLanes, threads - warp.index * kLanes);
  warp.alive = lanes == kLanes ? kAll : (1u << lanes) - 1;
  warp.ready.clear();
  warp.parked.clear();
  warp.at_barrier = 0;
  warp.sync_count = 0;
  warp.now = nullptr;
  warp.copies.clear();
  warp.groups.fill(0);
  for (const SpecialSlot& slot : kernel->specials)
    if (is_of_block(slot.which)) fill_same(warp, slot);
  make_ready(warp, 0, warp.alive);
}

void Block::fill_memory(const Launch& made) {
  const char poison = static_cast<char>(settings().poison);
  shared_bytes = kernel->shared_bytes + made.dynamic_shared;
  const std::size_t room = aligned(shared_bytes) + 16;
  shared.assign(room, poison);
  if (settings().check_reads) shared_written.assign(room, 0);
  if (settings().check_races) touches.assign(room, Touch{});
  if (kernel->local_bytes == 0) return;
  const std::size_t lanes = (threads + kLanes - 1) / kLanes * kLanes;
  local.assign(lanes * kernel->local_bytes, poison);
  if (settings().check_reads) local_written.assign(local.size(), 0);
}

bool Block::run(std::uint64_t budget) {
  const std::uint64_t end = executed + budget;
  for (;;) {
    if (run_warps()) {
      if (launch->failed) return true;
      if (executed >= end || std::exchange(paused, false)) return false;
      continue;
    }
    bool left = true;
    for (const Warp& warp : warps) left = left && warp.alive == 0;
    if (left) return true;
    if (!pass_barrier()) stuck();
  }
}

/// Runs a time slice of each ready warp. Returns false if no warp is ready.
bool Block::run_warps() {
  order.resize(warps.size());
  std::iota(order.begin(), order.end(), 0u);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
  bool ran = false;
  for (std::uint32_t i : order) {
    if (warps[i].ready.empty()) continue;
    ran = true;
    run_warp(warps[i], kTurn);
    if (launch->failed) return true;
  }
  return ran;
}

bool Block::pass_barrier() {
  Vote vote;
  for (Warp& warp : warps) {
    if (warp.at_barrier != warp.alive) return false;
    if (warp.alive != 0) add_votes(warp, kernel->code[warp.barrier_pc], vote);
  }
  for (Warp& warp : warps) {
    if (warp.alive == 0) continue;
    give_result(warp, kernel->code[warp.barrier_pc], vote);
    const std::uint32_t lanes = warp.at_barrier;
    warp.at_barrier = 0;
    make_ready(warp, warp.barrier_pc + 1, lanes);
  }
  ++phase;
  return true;
}

void Block::stuck() {
  for (Warp& warp : warps) {
    for (const Parked& parked : warp.parked) {
      warp.now = &kernel->code[parked.pc];
      std::ostringstream text;
      text << "lanes 0x" << std::hex << parked.lanes << " wait for lanes 0x"
           << (parked.need & ~parked.lanes) << ", which never come";
      fault(warp, FaultKind::kFailure, first_lane(parked.lanes), text.str());
    }
  }
  for (Warp& warp : warps) {
    if (warp.at_barrier == 0) continue;
    warp.now = &kernel->code[warp.barrier_pc];
    fault(warp, FaultKind::kFailure, first_lane(warp.at_barrier),
          "waits at a barrier that not all threads reach");
  }
  throw Fault{FaultKind::kFailure, "ptx-device: a block of " + kernel->name + " is stuck"};
}

}  // namespace ptx
