// Offsets of registers. Registers never live at the same time share an offset, so a warp's
// registers stay in the cache. Each lane has separate memory, so liveness per thread is also valid
// per warp.
#include "tests/ptx_device/decode/decoder.h"

#include <algorithm>
#include <functional>

namespace ptx {
namespace {

using Lists = std::vector<std::vector<int>>;  // registers of each statement

/// A set of registers, as bits.
class RegisterSet {
 public:
  explicit RegisterSet(std::size_t registers) : words((registers + 63) / 64) {}
  void add(int reg) { words[reg / 64] |= std::uint64_t{1} << (reg % 64); }
  bool has(int reg) const { return ((words[reg / 64] >> (reg % 64)) & 1) != 0; }

  std::vector<std::uint64_t> words;
};

/// A basic block: statements without a jump in or out.
struct Run {
  Run(std::size_t begin, std::size_t registers)
      : begin(begin),
        end(begin),
        live_in(registers),
        live_out(registers),
        reads(registers),
        writes(registers) {}

  std::size_t begin, end;
  std::vector<std::size_t> next;
  RegisterSet live_in, live_out;
  RegisterSet reads;  // before they are written
  RegisterSet writes;
};

/// The interval from the first to the last statement of a live register.
struct Interval {
  std::size_t begin = ~std::size_t{0}, end = 0;
  int reg = 0;

  void cover(std::size_t statement) {
    begin = std::min(begin, statement);
    end = std::max(end, statement);
  }
};

bool jumps(const Statement& statement) {
  const std::string& opcode = statement.op[0];
  return opcode == "bra" || opcode == "brx" || opcode == "ret" || opcode == "exit";
}

/// Computes the live registers of each statement.
class Liveness {
 public:
  Liveness(const Function& function, const Lists& reads, const Lists& writes)
      : function_(function), reads_(reads), writes_(writes), run_at_(function.statements.size()) {
    cut_into_runs();
    for (std::size_t i = 0; i < runs_.size(); ++i) {
      note_uses(runs_[i]);
      link(i);
    }
    while (flow_back()) {
    }
  }

  std::vector<Interval> intervals() const {
    std::vector<Interval> found(function_.registers.size());
    for (std::size_t r = 0; r < found.size(); ++r) found[r].reg = static_cast<int>(r);
    for (const Run& run : runs_) cover(run, found);
    std::sort(found.begin(), found.end(), [](const Interval& a, const Interval& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.reg < b.reg;
    });
    return found;
  }

 private:
  void cut_into_runs() {
    const std::size_t count = function_.statements.size();
    std::vector<char> begins(count + 1, 0);
    begins[0] = 1;
    for (const auto& [name, index] : function_.labels) begins[index] = 1;
    for (std::size_t i = 0; i < count; ++i) {
      if (jumps(function_.statements[i])) begins[i + 1] = 1;
      if (begins[i] != 0) runs_.emplace_back(i, function_.registers.size());
      runs_.back().end = i + 1;
      run_at_[i] = runs_.size() - 1;
    }
  }

  void note_uses(Run& run) const {
    for (std::size_t i = run.begin; i < run.end; ++i) {
      for (const int reg : reads_[i])
        if (!run.writes.has(reg)) run.reads.add(reg);
      for (const int reg : writes_[i]) run.writes.add(reg);
    }
  }

  void link_to(Run& run, const std::string& label) const {
    const auto found = function_.labels.find(label);
    if (found != function_.labels.end() && found->second < run_at_.size())
      run.next.push_back(run_at_[found->second]);
  }
  void link(std::size_t index) {
    Run& run = runs_[index];
    const Statement& last = function_.statements[run.end - 1];
    if (last.op[0] == "bra") link_to(run, last.operands[0].name);
    if (last.op[0] == "brx") {
      const auto table = function_.tables.find(last.operands[1].name);
      if (table != function_.tables.end())
        for (const std::string& label : table->second) link_to(run, label);
    }
    const bool falls = last.guard >= 0 || !jumps(last);
    if (falls && index + 1 < runs_.size()) run.next.push_back(index + 1);
  }

  /// Propagates live registers from each block to its predecessors. Returns false if nothing
  /// changed.
  bool flow_back() {
    bool changed = false;
    for (auto run = runs_.rbegin(); run != runs_.rend(); ++run) {
      for (std::size_t w = 0; w < run->live_in.words.size(); ++w) {
        std::uint64_t out = 0;
        for (const std::size_t next : run->next) out |= runs_[next].live_in.words[w];
        const std::uint64_t in = run->reads.words[w] | (out & ~run->writes.words[w]);
        changed = changed || in != run->live_in.words[w];
        run->live_out.words[w] = out;
        run->live_in.words[w] = in;
      }
    }
    return changed;
  }

  void cover(const Run& run, std::vector<Interval>& found) const {
    for (std::size_t i = run.begin; i < run.end; ++i) {
      for (const int reg : reads_[i]) found[reg].cover(i);
      for (const int reg : writes_[i]) found[reg].cover(i);
    }
    for (Interval& interval : found) {
      if (run.live_in.has(interval.reg)) interval.cover(run.begin);
      if (run.live_out.has(interval.reg)) interval.cover(run.end);
    }
  }

  const Function& function_;
  const Lists& reads_;
  const Lists& writes_;
  std::vector<Run> runs_;
  std::vector<std::size_t> run_at_;  // of each statement
};

/// Allocates offsets and frees the offsets of dead registers.
class Places {
 public:
  Places(const Function& function, std::size_t& bytes)
      : function_(function), bytes_(bytes), places_(function.registers.size(), 0) {}

  void lend(const Interval& interval) {
    take_back(interval.begin);
    const unsigned bytes = function_.registers[interval.reg].bytes;
    if (bytes > 8) throw Unsupported("registers of 128 bits, in " + function_.name);
    auto& free = free_[bytes];
    if (free.empty()) add(free, bytes);
    places_[interval.reg] = free.back();
    free.pop_back();
    active_.emplace_back(interval.end, interval.reg);
    std::push_heap(active_.begin(), active_.end(), std::greater<>());
  }
  std::vector<std::uint32_t> take() { return std::move(places_); }

 private:
  void take_back(std::size_t before) {
    while (!active_.empty() && active_.front().first < before) {
      std::pop_heap(active_.begin(), active_.end(), std::greater<>());
      const int reg = active_.back().second;
      active_.pop_back();
      free_[function_.registers[reg].bytes].push_back(places_[reg]);
    }
  }

  /// A cache line holds 16 predicates.
  void add(std::vector<std::uint32_t>& free, unsigned bytes) {
    bytes_ = (bytes_ + 63) / 64 * 64;
    const auto begin = static_cast<std::uint32_t>(bytes_);
    if (bytes == 0) {
      for (unsigned i = 0; i < 16; ++i) free.push_back(begin + 4 * i);
      bytes_ += 64;
    } else {
      free.push_back(begin);
      bytes_ += bytes * kLanes;
    }
  }

  const Function& function_;
  std::size_t& bytes_;
  std::vector<std::uint32_t> places_;
  std::vector<std::uint32_t> free_[9];               // by size
  std::vector<std::pair<std::size_t, int>> active_;  // interval ends, as a heap
};

}  // namespace

std::vector<std::uint32_t> place_registers(const Function& function, const Lists& reads,
                                           const Lists& writes, std::size_t& bytes) {
  Places places(function, bytes);
  for (const Interval& interval : Liveness(function, reads, writes).intervals())
    places.lend(interval);
  return places.take();
}

}  // namespace ptx
