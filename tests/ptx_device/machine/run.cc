// Runs blocks. Each warp's threads go on in groups that are at one place; a group waits at *.sync
// until all lanes of the mask are there, and at a barrier for the block. Which group, warp and block
// goes first is drawn from the seed.
#include "tests/ptx_device/machine/machine.h"
#include "tests/ptx_device/machine/memory_ops.h"

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

namespace ptx {
namespace {

constexpr std::uint64_t kTurn = 20000;        // instructions of a group before another's turn
constexpr std::uint64_t kSlice = 1'000'000;   // of a block
constexpr std::size_t kMostBlocks = 64;       // under way on a thread of the host

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0x7f4a7c15u) * 0xbf58476d1ce4e5b9u;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebu;
  x ^= x >> 29;
  return x | 1;
}

/// The lanes of a group become one or more groups.
void make_ready(Warp& w, std::uint32_t pc, std::uint32_t lanes) {
  if (lanes == 0) return;
  Block& block = *w.block;
  switch (settings().schedule) {
    case Schedule::kTogether: w.ready.push_back({pc, lanes}); return;
    case Schedule::kSplit: {
      const auto draw = block.draw();
      const std::uint32_t some = (draw & 1) != 0 ? lanes : lanes & static_cast<std::uint32_t>(draw >> 16);
      if (some != 0) w.ready.push_back({pc, some});
      if (some != lanes) w.ready.push_back({pc, lanes & ~some});
      return;
    }
    case Schedule::kAlone:
      for (; lanes != 0; lanes &= lanes - 1) w.ready.push_back({pc, lanes & -lanes});
  }
}

bool choose(Warp& w, Group& group, bool other) {
  if (w.ready.empty()) return false;
  std::size_t at = 0;
  if (settings().schedule == Schedule::kTogether && !other) {
    for (std::size_t i = 1; i < w.ready.size(); ++i)
      if (w.ready[i].pc < w.ready[at].pc) at = i;
  } else {
    at = w.block->draw() % w.ready.size();
  }
  group = w.ready[at];
  w.ready[at] = w.ready.back();
  w.ready.pop_back();
  if (settings().schedule != Schedule::kTogether) return true;
  for (std::size_t i = 0; i < w.ready.size();) {
    if (w.ready[i].pc == group.pc) {
      group.lanes |= w.ready[i].lanes;
      w.ready[i] = w.ready.back();
      w.ready.pop_back();
    } else {
      ++i;
    }
  }
  return true;
}

/// Lanes `m` of a group reach a warp-wide operation. True: it was done, and they go on.
bool meet(Warp& w, const Ins& ins, std::uint32_t pc, std::uint32_t& m) {
  const std::uint32_t need = at<std::uint32_t>(w, ins.e)[first_lane(m)];
  for (std::uint32_t left = m; left != 0; left &= left - 1)
    if (at<std::uint32_t>(w, ins.e)[first_lane(left)] != need)
      fault(w, FaultKind::kInstruction, first_lane(left), "lanes name different masks");
  if ((m & ~need) != 0)
    fault(w, FaultKind::kInstruction, first_lane(m & ~need), "is not in the mask that it names");
  if ((need & ~w.alive) != 0)
    fault(w, FaultKind::kInstruction, first_lane(m),
          "names lane " + std::to_string(first_lane(need & ~w.alive)) + ", which has left");
  const bool is_barrier = ins.count == 0;  // bar.warp.sync, whose lanes may be at several places
  std::uint32_t all = m;
  for (const Parked& parked : w.parked)
    if (parked.need == need && (is_barrier || parked.pc == pc)) all |= parked.lanes;
  if (all != need) {
    w.parked.push_back({pc, m, need});
    return false;
  }
  for (std::size_t i = 0; i < w.parked.size();) {
    Parked& parked = w.parked[i];
    if (parked.need == need && (is_barrier || parked.pc == pc)) {
      if (parked.pc != pc)
        make_ready(w, parked.pc + 1, parked.lanes);
      else
        m |= parked.lanes;
      parked = w.parked.back();
      w.parked.pop_back();
    } else {
      ++i;
    }
  }
  ins.fn(w, ins, m);
  ++w.sync_count;
  return true;
}

/// Runs a warp until all its lanes wait or have left, or it has had its turn.
void run_warp(Warp& w, std::uint64_t most) {
  Block& block = *w.block;
  const Ins* code = block.kernel->code.data();
  std::uint64_t executed = 0, executed_lanes = 0, turn = 0;
  Group group{};
  const auto leave = [&] {
    block.executed += executed;
    block.executed_lanes += executed_lanes;
  };
  if (!choose(w, group, false)) return;
  const bool together = settings().schedule == Schedule::kTogether;
  for (;;) {
    const Ins& ins = code[group.pc];
    if (ins.leader && !w.ready.empty() && (together || turn > kTurn)) {
      w.ready.push_back(group);
      choose(w, group, turn > kTurn);
      if (turn > kTurn) turn = 0;
    } else if (ins.leader && executed > most) {
      w.ready.push_back(group);
      return leave();
    }
    // Not `ins`: another group may have been chosen.
    const Ins& now = code[group.pc];
    std::uint32_t m = group.lanes;
    if (now.guard >= 0) {
      const std::uint32_t p = *at<std::uint32_t>(w, static_cast<std::uint32_t>(now.guard));
      m &= now.guard_negated ? ~p : p;
    }
    ++executed;
    ++turn;
    executed_lanes += static_cast<unsigned>(__builtin_popcount(m));
    if (now.kind == Kind::kPlain) {
      if (m != 0) {
        w.now = &now;
        now.fn(w, now, m);
      }
      ++group.pc;
      continue;
    }
    w.now = &now;
    if (m == 0) {
      ++group.pc;
      continue;
    }
    const std::uint32_t rest = group.lanes & ~m;
    bool goes_on = true;
    switch (now.kind) {
      case Kind::kBranch:
        if (rest != 0) w.ready.push_back({group.pc + 1, rest});
        group = {now.target, m};
        if (rest != 0) {
          w.ready.push_back(group);
          choose(w, group, (block.draw() & 15) == 0);
        }
        break;
      case Kind::kTable: {
        const auto& table = block.kernel->tables[static_cast<std::size_t>(now.imm)];
        const auto* index = at<std::uint32_t>(w, now.a);
        if (rest != 0) w.ready.push_back({group.pc + 1, rest});
        for (std::uint32_t left = m; left != 0;) {
          const std::uint32_t to = index[first_lane(left)];
          if (to >= table.size())
            fault(w, FaultKind::kInstruction, first_lane(left), "jumps past the table's end");
          std::uint32_t same = 0;
          for (std::uint32_t l = left; l != 0; l &= l - 1)
            if (index[first_lane(l)] == to) same |= l & -l;
          w.ready.push_back({table[to], same});
          left &= ~same;
        }
        goes_on = choose(w, group, false);
        break;
      }
      case Kind::kExit:
        w.alive &= ~m;
        group = {group.pc + 1, rest};
        if (rest == 0) goes_on = choose(w, group, false);
        break;
      case Kind::kWarpSync: {
        const std::uint32_t pc = group.pc;
        if (rest != 0) make_ready(w, pc + 1, rest);
        if (meet(w, now, pc, m)) make_ready(w, pc + 1, m);
        goes_on = choose(w, group, false);
        break;
      }
      case Kind::kBarrier:
        if (rest != 0) w.ready.push_back({group.pc + 1, rest});
        if (w.at_barrier != 0 && w.barrier_pc != group.pc)
          fault(w, FaultKind::kFailure, first_lane(m),
                "another thread of the warp waits at another barrier: \"" +
                    block.kernel->text[w.barrier_pc] + "\", line " +
                    std::to_string(code[w.barrier_pc].line));
        w.at_barrier |= m;
        w.barrier_pc = group.pc;
        goes_on = choose(w, group, false);
        break;
      case Kind::kPause:
        w.ready.push_back({group.pc + 1, group.lanes});
        return leave();
      case Kind::kPlain: break;
    }
    if (!goes_on) return leave();
  }
}

std::mutex said_mutex;
std::set<std::string> said;
std::atomic<std::size_t> complaint_count{0};

std::string place_of(Warp& warp, unsigned lane, const std::string& what) {
  const Block& block = *warp.block;
  const Launch& launch = *block.launch;
  const unsigned thread = warp.index * kLanes + lane;
  std::ostringstream text;
  text << "ptx-device: " << block.kernel->name << ", block (" << block.id[0] << ", " << block.id[1]
       << ", " << block.id[2] << "), thread (" << thread % launch.block[0] << ", "
       << thread / launch.block[0] % launch.block[1] << ", "
       << thread / launch.block[0] / launch.block[1] << "): " << what;
  if (warp.now != nullptr) {
    const auto index = static_cast<std::size_t>(warp.now - block.kernel->code.data());
    text << "\n  at \"" << block.kernel->text[index] << "\", line " << warp.now->line << " of the PTX";
  }
  return text.str();
}

/// Threads that help to run blocks.
class Helpers {
 public:
  static Helpers& get() {
    static Helpers* helpers = new Helpers;
    return *helpers;
  }
  void add(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }

 private:
  Helpers() {
    for (unsigned i = 1; i < settings().threads; ++i)
      std::thread([this] {
        for (;;) {
          std::function<void()> task;
          {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return !tasks_.empty(); });
            task = std::move(tasks_.front());
            tasks_.pop_front();
          }
          task();
        }
      }).detach();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
};

/// Blocks of a launch, as long as there are any.
void work(Launch& launch) {
  thread_local std::vector<std::unique_ptr<Block>> idle;
  std::vector<std::unique_ptr<Block>> active;
  const std::uint64_t blocks = launch.blocks();
  const std::uint64_t order = mix(settings().seed, launch.number);  // the same on all threads
  std::uint64_t random = order;
  bool more = true, add = true;
  while (!launch.failed) {
    if (more && add && active.size() < kMostBlocks) {
      std::uint64_t index = launch.next++;
      if (index >= blocks) {
        more = false;
      } else {
        const std::uint64_t first = index & ~std::uint64_t{7};
        if (first + 8 <= blocks) index = first + ((index ^ (mix(order, first) >> 7)) & 7);
        if (idle.empty()) idle.push_back(std::make_unique<Block>());
        active.push_back(std::move(idle.back()));
        idle.pop_back();
        active.back()->start(launch, index);
      }
    }
    add = false;
    if (active.empty()) {
      if (!more) break;
      add = true;
      continue;
    }
    random = mix(random, active.size());
    const std::size_t at = (random >> 8) % active.size();
    bool done = false;
    try {
      done = active[at]->run(kSlice);
    } catch (const Fault& fault) {
      const std::lock_guard lock(launch.mutex);
      if (!launch.failed) launch.fault = fault;
      launch.failed = true;
      break;
    }
    if (done) {
      launch.executed += active[at]->executed;
      launch.executed_lanes += active[at]->executed_lanes;
      idle.push_back(std::move(active[at]));
      active[at] = std::move(active.back());
      active.pop_back();
    } else if (active[at]->executed > settings().limit) {
      const std::lock_guard lock(launch.mutex);
      if (!launch.failed) launch.fault = {FaultKind::kFailure, "ptx-device: " + launch.kernel->name + " does not end"};
      launch.failed = true;
      break;
    }
    add = true;
  }
  for (auto& block : active) idle.push_back(std::move(block));
}

}  // namespace

void fault(Warp& warp, FaultKind kind, unsigned lane, const std::string& what) {
  throw Fault{kind, place_of(warp, lane, what)};
}

void complain(Warp& warp, unsigned lane, const std::string& what) {
  if (settings().strict) fault(warp, FaultKind::kFailure, lane, what);
  ++complaint_count;
  const auto index = static_cast<std::size_t>(warp.now - warp.block->kernel->code.data());
  const std::lock_guard lock(said_mutex);
  if (said.size() > 100 || !said.insert(warp.block->kernel->name + std::to_string(index)).second) return;
  std::fprintf(stderr, "%s\n", place_of(warp, lane, what).c_str());
}

std::size_t complaints() { return complaint_count; }

void Block::start(Launch& made, std::uint64_t at_index) {
  const bool other = kernel != made.kernel || threads != made.block[0] * made.block[1] * made.block[2];
  const bool again = launch_number == made.number && !other;
  launch = &made;
  launch_number = made.number;
  kernel = made.kernel;
  index = at_index;
  id[0] = static_cast<std::uint32_t>(index % made.grid[0]);
  id[1] = static_cast<std::uint32_t>(index / made.grid[0] % made.grid[1]);
  id[2] = static_cast<std::uint32_t>(index / made.grid[0] / made.grid[1]);
  threads = made.block[0] * made.block[1] * made.block[2];
  random = mix(settings().seed * 31 + made.number, index);
  phase = 1;
  executed = executed_lanes = 0;
  const std::size_t count = (threads + kLanes - 1) / kLanes;
  if (!again) cache.fill({});
  if (other) {
    warps.clear();
    warps.resize(count);
    registers.assign(count * kernel->register_bytes + 64, 0);
  }
  char* base = registers.data();
  base += (64 - reinterpret_cast<std::uintptr_t>(base) % 64) % 64;
  for (std::size_t i = 0; i < count; ++i) {
    Warp& w = warps[i];
    w.block = this;
    w.index = static_cast<std::uint32_t>(i);
    w.regs = base + i * kernel->register_bytes;
    const std::size_t lanes = std::min<std::size_t>(kLanes, threads - i * kLanes);
    w.alive = lanes == kLanes ? kAll : (1u << lanes) - 1;
    w.ready.clear();
    w.parked.clear();
    w.at_barrier = 0;
    w.sync_count = 0;
    w.now = nullptr;
    const auto fill = [&](std::uint32_t offset, unsigned bytes, auto value_of) {
      for (unsigned lane = 0; lane < kLanes; ++lane) {
        const std::uint64_t value = value_of(lane);
        std::memcpy(w.regs + offset + lane * bytes, &value, bytes);
      }
    };
    if (other) {
      for (const Constant& constant : kernel->constants) {
        if (constant.bytes == 0) {
          *at<std::uint32_t>(w, constant.offset) = constant.bits != 0 ? kAll : 0;
        } else {
          fill(constant.offset, constant.bytes, [&](unsigned) { return constant.bits; });
        }
      }
    }
    for (const SpecialSlot& slot : kernel->specials)
      fill(slot.offset, slot.bytes, [&](unsigned lane) -> std::uint64_t {
        const auto thread = static_cast<unsigned>(i * kLanes + lane);
        switch (slot.which) {
          case Special::kTidX: return thread % made.block[0];
          case Special::kTidY: return thread / made.block[0] % made.block[1];
          case Special::kTidZ: return thread / made.block[0] / made.block[1];
          case Special::kNtidX: return made.block[0];
          case Special::kNtidY: return made.block[1];
          case Special::kNtidZ: return made.block[2];
          case Special::kCtaidX: return id[0];
          case Special::kCtaidY: return id[1];
          case Special::kCtaidZ: return id[2];
          case Special::kNctaidX: return made.grid[0];
          case Special::kNctaidY: return made.grid[1];
          case Special::kNctaidZ: return made.grid[2];
          case Special::kLaneid: return lane;
          case Special::kWarpid: return i;
          case Special::kNwarpid: return count;
          case Special::kSmid: return index % static_cast<unsigned>(settings().multiprocessors);
          case Special::kNsmid: return static_cast<unsigned>(settings().multiprocessors);
          case Special::kGridid: return made.number;
          case Special::kMaskEq: return 1u << lane;
          case Special::kMaskLe: return 0xffffffffu >> (31 - lane);
          case Special::kMaskLt: return (1u << lane) - 1;
          case Special::kMaskGe: return 0xffffffffu << lane;
          case Special::kMaskGt: return lane == 31 ? 0 : 0xffffffffu << (lane + 1);
          case Special::kDynamicShared: return made.dynamic_shared;
          case Special::kTotalShared: return shared_bytes;
          case Special::kZero: return 0;
        }
        return 0;
      });
    make_ready(w, 0, w.alive);
  }
  shared_bytes = kernel->shared_bytes + made.dynamic_shared;
  const std::size_t room = (shared_bytes + 63) / 64 * 64 + 16;
  shared.assign(room, static_cast<char>(settings().poison));
  if (settings().check_reads) shared_written.assign(room, 0);
  if (settings().check_races) touches.assign(room, Touch{});
  if (kernel->local_bytes != 0) {
    local.assign(count * kLanes * kernel->local_bytes, static_cast<char>(settings().poison));
    if (settings().check_reads) local_written.assign(local.size(), 0);
  }
}

bool Block::run(std::uint64_t budget) {
  const std::uint64_t end = executed + budget;
  std::vector<std::uint32_t> order(warps.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
  for (;;) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
    bool ran = false;
    for (std::uint32_t i : order) {
      if (warps[i].ready.empty()) continue;
      ran = true;
      run_warp(warps[i], kTurn * 4);
      if (launch->failed) return true;
    }
    if (ran) {
      if (executed < end) continue;
      return false;
    }
    bool left = true;
    for (const Warp& w : warps) left = left && w.alive == 0;
    if (left) return true;
    if (!pass_barrier()) stuck();
  }
}

bool Block::pass_barrier() {
  bool all = true, any = false;
  unsigned count = 0;
  for (Warp& w : warps) {
    if (w.at_barrier != w.alive) return false;
    if (w.alive == 0) continue;
    const Ins& ins = kernel->code[w.barrier_pc];
    if ((ins.how & 3) == 0) continue;
    std::uint32_t p = *at<std::uint32_t>(w, ins.a);
    if ((ins.how & 4) != 0) p = ~p;
    p &= w.at_barrier;
    all = all && p == w.at_barrier;
    any = any || p != 0;
    count += static_cast<unsigned>(__builtin_popcount(p));
  }
  for (Warp& w : warps) {
    if (w.alive == 0) continue;
    const Ins& ins = kernel->code[w.barrier_pc];
    const unsigned how = ins.how & 3;
    if (how == 3) {
      auto* to = at<std::uint32_t>(w, ins.d);
      for (unsigned i = 0; i < kLanes; ++i)
        if (((w.at_barrier >> i) & 1) != 0) to[i] = count;
    } else if (how != 0) {
      auto* to = at<std::uint32_t>(w, ins.d);
      const bool yes = how == 1 ? all : any;
      *to = (*to & ~w.at_barrier) | (yes ? w.at_barrier : 0);
    }
    const std::uint32_t lanes = w.at_barrier;
    w.at_barrier = 0;
    make_ready(w, w.barrier_pc + 1, lanes);
  }
  ++phase;
  return true;
}

void Block::stuck() {
  for (Warp& w : warps) {
    for (const Parked& parked : w.parked) {
      w.now = &kernel->code[parked.pc];
      const std::uint32_t missing = parked.need & ~parked.lanes;
      std::ostringstream text;
      text << "lanes 0x" << std::hex << parked.lanes << " wait for lanes 0x" << missing
           << ", which never come";
      fault(w, FaultKind::kFailure, first_lane(parked.lanes), text.str());
    }
  }
  for (Warp& w : warps) {
    if (w.at_barrier != 0) {
      w.now = &kernel->code[w.barrier_pc];
      fault(w, FaultKind::kFailure, first_lane(w.at_barrier), "waits at a barrier that not all threads reach");
    }
  }
  throw Fault{FaultKind::kFailure, "ptx-device: a block of " + kernel->name + " is stuck"};
}

void run(Launch& launch) {
  const std::uint64_t blocks = launch.blocks();
  const auto helpers = static_cast<unsigned>(
      std::min<std::uint64_t>(settings().threads - (settings().threads == 0 ? 0 : 1), blocks - 1));
  // Small launches are done sooner alone.
  if (helpers == 0 || blocks < 4) return work(launch);
  struct Join {
    std::mutex mutex;
    std::condition_variable changed;
    unsigned running = 0;
    bool closed = false;
  };
  // A helper that is busy elsewhere is not waited for.
  const auto join = std::make_shared<Join>();
  for (unsigned i = 0; i < helpers; ++i)
    Helpers::get().add([join, &launch] {
      {
        const std::lock_guard lock(join->mutex);
        if (join->closed) return;
        ++join->running;
      }
      work(launch);
      const std::lock_guard lock(join->mutex);
      --join->running;
      join->changed.notify_one();
    });
  work(launch);
  std::unique_lock lock(join->mutex);
  join->closed = true;
  join->changed.wait(lock, [&] { return join->running == 0; });
}

}  // namespace ptx
