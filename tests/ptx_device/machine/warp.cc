// Runs a warp. Its threads run in groups at the same instruction. A group waits at *.sync until all
// lanes of the mask have arrived, and at a barrier for the block. The next group is chosen at
// random.
#include "tests/ptx_device/machine/machine.h"

namespace ptx {
namespace {

constexpr std::uint64_t kGroupTurn = 20'000;  // instructions of a group before another group runs

/// Selects the next group: the group furthest behind, or any.
enum class Choice : std::uint8_t { kBehind, kAny };

template <class List>
auto take_at(List& list, std::size_t at) {
  const auto taken = list[at];
  list[at] = list.back();
  list.pop_back();
  return taken;
}

std::size_t behind(const std::vector<Group>& groups) {
  std::size_t at = 0;
  for (std::size_t i = 1; i < groups.size(); ++i)
    if (groups[i].pc < groups[at].pc) at = i;
  return at;
}

/// Merges groups at the same instruction.
void join(std::vector<Group>& groups, Group& group) {
  for (std::size_t i = 0; i < groups.size();) {
    if (groups[i].pc == group.pc)
      group.lanes |= take_at(groups, i).lanes;
    else
      ++i;
  }
}

/// Returns false if no group is ready.
bool choose(Warp& warp, Group& group, Choice choice) {
  if (warp.ready.empty()) return false;
  const bool together = settings().schedule == Schedule::kTogether;
  const std::size_t at = together && choice == Choice::kBehind
                             ? behind(warp.ready)
                             : warp.block->draw() % warp.ready.size();
  group = take_at(warp.ready, at);
  if (together) join(warp.ready, group);
  return true;
}

void make_split(Warp& warp, std::uint32_t pc, std::uint32_t lanes) {
  const auto draw = warp.block->draw();
  const std::uint32_t some =
      (draw & 1) != 0 ? lanes : lanes & static_cast<std::uint32_t>(draw >> 16);
  if (some != 0) warp.ready.push_back({pc, some});
  if (some != lanes) warp.ready.push_back({pc, lanes & ~some});
}

/// The mask named by the lanes at a warp-wide operation. All lanes must name the same mask and be
/// in the mask.
std::uint32_t mask_of(Warp& warp, const Instruction& ins, std::uint32_t lanes) {
  const std::uint32_t* masks = at<std::uint32_t>(warp, ins.e);
  const std::uint32_t need = masks[first_lane(lanes)];
  for (std::uint32_t left = lanes; left != 0; left &= left - 1)
    if (masks[first_lane(left)] != need)
      fault(warp, FaultKind::kInstruction, first_lane(left), "lanes name different masks");
  if ((lanes & ~need) != 0)
    fault(warp, FaultKind::kInstruction, first_lane(lanes & ~need),
          "is not in the mask that it names");
  if ((need & ~warp.alive) != 0)
    fault(warp, FaultKind::kInstruction, first_lane(lanes),
          "names lane " + std::to_string(first_lane(need & ~warp.alive)) + ", which has left");
  return need;
}

/// `lanes` of a group reach a warp-wide operation. Returns true if the operation was executed; then
/// `lanes` continue.
bool meet(Warp& warp, const Instruction& ins, std::uint32_t pc, std::uint32_t& lanes) {
  const std::uint32_t need = mask_of(warp, ins, lanes);
  const bool is_barrier = ins.count == 0;  // bar.warp.sync; its lanes may differ in pc
  const auto meets = [&](const Parked& parked) {
    return parked.need == need && (is_barrier || parked.pc == pc);
  };
  std::uint32_t all = lanes;
  for (const Parked& parked : warp.parked)
    if (meets(parked)) all |= parked.lanes;
  if (all != need) {
    warp.parked.push_back({pc, lanes, need});
    return false;
  }
  for (std::size_t i = 0; i < warp.parked.size();) {
    if (!meets(warp.parked[i])) {
      ++i;
      continue;
    }
    const Parked parked = take_at(warp.parked, i);
    if (parked.pc != pc)
      make_ready(warp, parked.pc + 1, parked.lanes);
    else
      lanes |= parked.lanes;
  }
  ins.run(warp, ins, lanes);
  ++warp.sync_count;
  return true;
}

/// A time slice of a warp.
class Turn {
 public:
  Turn(Warp& warp, std::uint64_t most)
      : warp_(warp), block_(*warp.block), code_(block_.kernel->code.data()), most_(most) {}
  ~Turn() {
    block_.executed += executed_;
    block_.executed_lanes += executed_lanes_;
  }

  void run() {
    if (!choose(warp_, group_, Choice::kBehind)) return;
    for (;;) {
      if (code_[group_.pc].leader && !lead()) return;
      const Instruction& now = code_[group_.pc];  // of the chosen group
      const std::uint32_t lanes = unguarded(now);
      ++executed_;
      ++since_choice_;
      executed_lanes_ += static_cast<unsigned>(__builtin_popcount(lanes));
      if (lanes == 0) {
        ++group_.pc;
        continue;
      }
      warp_.now = &now;
      if (now.kind == Kind::kPlain) {
        now.run(warp_, now, lanes);
        ++group_.pc;
      } else if (!control(now, lanes)) {
        return;
      }
    }
  }

 private:
  /// Merges groups and possibly switches to another group. Returns false at the end of the warp's
  /// time slice.
  bool lead() {
    const bool long_enough = since_choice_ > kGroupTurn;
    if (!warp_.ready.empty() && (together_ || long_enough)) {
      warp_.ready.push_back(group_);
      choose(warp_, group_, long_enough ? Choice::kAny : Choice::kBehind);
      if (long_enough) since_choice_ = 0;
    } else if (executed_ > most_) {
      warp_.ready.push_back(group_);
      return false;
    }
    return true;
  }

  std::uint32_t unguarded(const Instruction& now) const {
    if (now.guard < 0) return group_.lanes;
    const std::uint32_t guard = *at<std::uint32_t>(warp_, static_cast<std::uint32_t>(now.guard));
    return group_.lanes & (now.guard_negated ? ~guard : guard);
  }

  /// Returns false if no group is ready.
  bool control(const Instruction& now, std::uint32_t lanes) {
    switch (now.kind) {
      case Kind::kBranch:
        return branch(now, lanes);
      case Kind::kTable:
        return branch_by_table(now, lanes);
      case Kind::kExit:
        return exit(lanes);
      case Kind::kWarpSync:
        return sync(now, lanes);
      case Kind::kBarrier:
        return wait(lanes);
      case Kind::kPause:
        block_.paused = true;
        warp_.ready.push_back({group_.pc + 1, group_.lanes});
        return false;
      case Kind::kPlain:
        break;
    }
    return true;
  }

  /// Lanes excluded by the guard continue after the instruction.
  void pass_by(std::uint32_t lanes) {
    const std::uint32_t rest = group_.lanes & ~lanes;
    if (rest != 0) warp_.ready.push_back({group_.pc + 1, rest});
  }

  bool branch(const Instruction& now, std::uint32_t lanes) {
    const bool apart = lanes != group_.lanes;
    pass_by(lanes);
    group_ = {now.target, lanes};
    if (!apart) return true;
    warp_.ready.push_back(group_);
    return choose(warp_, group_, (block_.draw() & 15) == 0 ? Choice::kAny : Choice::kBehind);
  }

  bool branch_by_table(const Instruction& now, std::uint32_t lanes) {
    const auto& table = block_.kernel->tables[static_cast<std::size_t>(now.imm)];
    const auto* index = at<std::uint32_t>(warp_, now.a);
    pass_by(lanes);
    while (lanes != 0) {
      const std::uint32_t to = index[first_lane(lanes)];
      if (to >= table.size())
        fault(warp_, FaultKind::kInstruction, first_lane(lanes), "jumps past the table's end");
      std::uint32_t same = 0;
      for (std::uint32_t left = lanes; left != 0; left &= left - 1)
        if (index[first_lane(left)] == to) same |= left & -left;
      warp_.ready.push_back({table[to], same});
      lanes &= ~same;
    }
    return choose(warp_, group_, Choice::kBehind);
  }

  bool exit(std::uint32_t lanes) {
    warp_.alive &= ~lanes;
    group_ = {group_.pc + 1, group_.lanes & ~lanes};
    return group_.lanes != 0 || choose(warp_, group_, Choice::kBehind);
  }

  bool sync(const Instruction& now, std::uint32_t lanes) {
    const std::uint32_t pc = group_.pc, rest = group_.lanes & ~lanes;
    if (rest != 0) make_ready(warp_, pc + 1, rest);
    if (meet(warp_, now, pc, lanes)) make_ready(warp_, pc + 1, lanes);
    return choose(warp_, group_, Choice::kBehind);
  }

  bool wait(std::uint32_t lanes) {
    pass_by(lanes);
    if (warp_.at_barrier != 0 && warp_.barrier_pc != group_.pc)
      fault(warp_, FaultKind::kFailure, first_lane(lanes),
            "another thread of the warp waits at another barrier: \"" +
                block_.kernel->text[warp_.barrier_pc] + "\", line " +
                std::to_string(code_[warp_.barrier_pc].line));
    warp_.at_barrier |= lanes;
    warp_.barrier_pc = group_.pc;
    return choose(warp_, group_, Choice::kBehind);
  }

  Warp& warp_;
  Block& block_;
  const Instruction* const code_;
  const std::uint64_t most_;
  const bool together_ = settings().schedule == Schedule::kTogether;
  std::uint64_t executed_ = 0, executed_lanes_ = 0, since_choice_ = 0;
  Group group_{};
};

}  // namespace

void make_ready(Warp& warp, std::uint32_t pc, std::uint32_t lanes) {
  if (lanes == 0) return;
  switch (settings().schedule) {
    case Schedule::kTogether:
      warp.ready.push_back({pc, lanes});
      return;
    case Schedule::kSplit:
      make_split(warp, pc, lanes);
      return;
    case Schedule::kAlone:
      for (; lanes != 0; lanes &= lanes - 1) warp.ready.push_back({pc, lanes & -lanes});
  }
}

void run_warp(Warp& warp, std::uint64_t most) { Turn(warp, most).run(); }

}  // namespace ptx
