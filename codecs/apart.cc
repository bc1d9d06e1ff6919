#include "codecs/apart.h"

#include "codecs/checks.h"

#include <algorithm>
#include <functional>
#include <string>

namespace tersor::encoding {
namespace {

template <typename Call>
void check_apart(const Codec& codec, const Call& call, CallMemory& memory) {
  if constexpr (requires { call.states; })
    for (const SegmentState& one : call.states)
      memory.update("residual", one.residual_in, one.residual_out);
  if constexpr (requires { call.memories; })
    for (const SegmentMemory& one : call.memories) memory.update("codec's memory", one.in, one.out);
  if constexpr (requires { call.frames; })
    for (const ConstByteSpan& one : call.frames) memory.read("payload", one.data(), one.size());
  memory.write("workspace", call.execution.workspace.data(), call.execution.workspace.size());
  memory.write("kept memory", call.execution.kept.data(), call.execution.kept.size());
  if (const std::string overlap = memory.overlap(); !overlap.empty()) fail(codec, overlap);
}

}  // namespace

bool overlap(const ConstValueSpan& one, const ConstValueSpan& other) {
  const std::less<> before;
  return !one.empty() && !other.empty() && before(one.pointer(), other.pointer() + other.bytes()) &&
         before(other.pointer(), one.pointer() + one.bytes());
}

std::vector<CallMemory::Range>& CallMemory::scratch() {
  constexpr std::size_t kUsual = 256;
  thread_local std::vector<Range> ranges = [] {
    std::vector<Range> empty;
    empty.reserve(kUsual);
    return empty;
  }();
  return ranges;
}

CallMemory::CallMemory() : ranges_(scratch()) { ranges_.clear(); }

void CallMemory::update(const char* name, const ConstValueSpan& in, const ValueSpan& out) {
  if (in.pointer() != out.pointer() || in.bytes() != out.bytes())
    read(name, in.pointer(), in.bytes());
  write(name, out.pointer(), out.bytes());
}

// In the order of addresses, a range overlaps an earlier one if and only if the range begins before
// the largest end so far.
std::string CallMemory::overlap() const {
  std::ranges::sort(ranges_, std::less<>(), &Range::first);
  const Range *read = nullptr, *written = nullptr;
  for (const Range& range : ranges_) {
    for (const Range* before : {written, range.is_written ? read : nullptr})
      if (before != nullptr && range.first < before->end())
        return std::string("the ") + before->name + " overlaps the " + range.name +
               ": give each memory of its own";
    const Range*& last = range.is_written ? written : read;
    if (last == nullptr || last->end() < range.end()) last = &range;
  }
  return {};
}

void check_apart(const Codec& codec, const EncodeCall& call, ConstByteSpan frame) {
  CallMemory memory;
  for (const ConstValueSpan& one : call.gradients)
    memory.read("gradient", one.pointer(), one.bytes());
  memory.write("frame", frame.data(), frame.size());
  check_apart(codec, call, memory);
}

void check_apart(const Codec& codec, const DecodeCall& call) {
  CallMemory memory;
  for (const ValueSpan& one : call.outputs) memory.write("output", one.pointer(), one.bytes());
  check_apart(codec, call, memory);
}

void check_apart(const Codec& codec, const ReduceCall& call, ConstByteSpan frame) {
  CallMemory memory;
  memory.write("frame", frame.data(), frame.size());
  check_apart(codec, call, memory);
}

}  // namespace tersor::encoding
