// Where registers lie: those that are never needed at once share a place, so that a warp's stay in
// the cache. Lanes have places of their own, so that what holds for one thread holds for a warp.
#include "tests/ptx_device/machine/machine.h"

#include <algorithm>

namespace ptx {
namespace {

struct Part {
  std::size_t begin, end;  // statements
  std::vector<std::size_t> next;
  std::vector<std::uint64_t> live_in, live_out, uses, kills;
};

}  // namespace

std::vector<std::uint32_t> place_registers(const Function& function,
                                           const std::vector<std::vector<int>>& reads,
                                           const std::vector<std::vector<int>>& writes,
                                           std::size_t& bytes) {
  const std::size_t count = function.statements.size(), registers = function.registers.size();
  const std::size_t words = (registers + 63) / 64;
  std::vector<char> begins(count + 1, 0);
  begins[0] = 1;
  for (const auto& [name, index] : function.labels) begins[index] = 1;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& op = function.statements[i].op[0];
    if (op == "bra" || op == "brx" || op == "ret" || op == "exit") begins[i + 1] = 1;
  }
  std::vector<Part> parts;
  std::vector<std::size_t> part_at(count + 1, 0);
  for (std::size_t i = 0; i < count; ++i) {
    if (begins[i] != 0) parts.push_back({i, i, {}, {}, {}, {}, {}});
    part_at[i] = parts.size() - 1;
    parts.back().end = i + 1;
  }
  for (std::size_t p = 0; p < parts.size(); ++p) {
    Part& part = parts[p];
    part.live_in.resize(words);
    part.live_out.resize(words);
    part.uses.resize(words);
    part.kills.resize(words);
    for (std::size_t i = part.begin; i < part.end; ++i) {
      for (int reg : reads[i])
        if (((part.kills[reg / 64] >> (reg % 64)) & 1) == 0)
          part.uses[reg / 64] |= std::uint64_t{1} << (reg % 64);
      for (int reg : writes[i]) part.kills[reg / 64] |= std::uint64_t{1} << (reg % 64);
    }
    const Statement& last = function.statements[part.end - 1];
    const std::string& op = last.op[0];
    const auto to = [&](const std::string& label) {
      auto found = function.labels.find(label);
      if (found != function.labels.end() && found->second < count)
        part.next.push_back(part_at[found->second]);
    };
    if (op == "bra") to(last.operands[0].name);
    if (op == "brx") {
      auto table = function.tables.find(last.operands[1].name);
      if (table != function.tables.end())
        for (const std::string& label : table->second) to(label);
    }
    const bool falls = last.guard >= 0 || (op != "bra" && op != "brx" && op != "ret" && op != "exit");
    if (falls && p + 1 < parts.size()) part.next.push_back(p + 1);
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t p = parts.size(); p-- > 0;) {
      Part& part = parts[p];
      for (std::size_t w = 0; w < words; ++w) {
        std::uint64_t out = 0;
        for (std::size_t next : part.next) out |= parts[next].live_in[w];
        const std::uint64_t in = part.uses[w] | (out & ~part.kills[w]);
        changed = changed || in != part.live_in[w];
        part.live_out[w] = out;
        part.live_in[w] = in;
      }
    }
  }
  struct Interval {
    std::size_t begin = ~std::size_t{0}, end = 0;
    int reg = 0;
  };
  std::vector<Interval> intervals(registers);
  const auto touch = [&](int reg, std::size_t i) {
    intervals[reg].begin = std::min(intervals[reg].begin, i);
    intervals[reg].end = std::max(intervals[reg].end, i);
  };
  for (std::size_t r = 0; r < registers; ++r) intervals[r].reg = static_cast<int>(r);
  for (const Part& part : parts) {
    for (std::size_t i = part.begin; i < part.end; ++i) {
      for (int reg : reads[i]) touch(reg, i);
      for (int reg : writes[i]) touch(reg, i);
    }
    for (std::size_t r = 0; r < registers; ++r) {
      if (((part.live_in[r / 64] >> (r % 64)) & 1) != 0) touch(static_cast<int>(r), part.begin);
      if (((part.live_out[r / 64] >> (r % 64)) & 1) != 0) touch(static_cast<int>(r), part.end);
    }
  }
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.reg < b.reg;
  });
  std::vector<std::uint32_t> places(registers, 0);
  std::vector<std::uint32_t> free_places[9];
  std::vector<std::pair<std::size_t, int>> active;  // ends, as a heap
  for (const Interval& interval : intervals) {
    while (!active.empty() && active.front().first < interval.begin) {
      std::pop_heap(active.begin(), active.end(), std::greater<>());
      const int reg = active.back().second;
      active.pop_back();
      free_places[function.registers[reg].bytes].push_back(places[reg]);
    }
    const unsigned size = function.registers[interval.reg].bytes;
    if (size > 8) throw Unsupported("registers of 128 bits, in " + function.name);
    auto& free = free_places[size];
    if (free.empty()) {
      bytes = (bytes + 63) / 64 * 64;
      if (size == 0) {
        for (unsigned i = 0; i < 16; ++i) free.push_back(static_cast<std::uint32_t>(bytes + 4 * i));
        bytes += 64;
      } else {
        free.push_back(static_cast<std::uint32_t>(bytes));
        bytes += size * kLanes;
      }
    }
    places[interval.reg] = free.back();
    free.pop_back();
    active.emplace_back(interval.end, interval.reg);
    std::push_heap(active.begin(), active.end(), std::greater<>());
  }
  return places;
}

}  // namespace ptx
