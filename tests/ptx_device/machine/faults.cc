// Faults and reports, always with kernel, block, thread and instruction.
#include "tests/ptx_device/machine/machine.h"

#include <cstdio>
#include <set>
#include <sstream>

namespace ptx {
namespace {

constexpr std::size_t kMostSaid = 100;

std::mutex said_mutex;
std::set<std::string> said;
std::atomic<std::size_t> complaint_count{0};

std::size_t index_of(const Warp& warp) {
  return static_cast<std::size_t>(warp.now - warp.block->kernel->code.data());
}

std::string place_of(Warp& warp, unsigned lane, const std::string& what) {
  const Block& block = *warp.block;
  const unsigned* shape = block.launch->block;
  const unsigned thread = warp.index * kLanes + lane;
  std::ostringstream text;
  text << "ptx-device: " << block.kernel->name << ", block (" << block.id[0] << ", " << block.id[1]
       << ", " << block.id[2] << "), thread (" << thread % shape[0] << ", "
       << thread / shape[0] % shape[1] << ", " << thread / shape[0] / shape[1] << "): " << what;
  if (warp.now != nullptr)
    text << "\n  at \"" << block.kernel->text[index_of(warp)] << "\", line " << warp.now->line
         << " of the PTX";
  return text.str();
}

bool is_new(const std::string& place) {
  const std::lock_guard lock(said_mutex);
  return said.size() <= kMostSaid && said.insert(place).second;
}

}  // namespace

void fault(Warp& warp, FaultKind kind, unsigned lane, const std::string& what) {
  throw Fault{kind, place_of(warp, lane, what)};
}

void complain(Warp& warp, unsigned lane, const std::string& what) {
  if (settings().strict) fault(warp, FaultKind::kFailure, lane, what);
  ++complaint_count;
  if (is_new(warp.block->kernel->name + std::to_string(index_of(warp))))
    std::fprintf(stderr, "%s\n", place_of(warp, lane, what).c_str());
}

std::size_t complaints() { return complaint_count; }

}  // namespace ptx
