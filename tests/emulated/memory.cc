// The emulator's memory: spans, and for each byte who touched it last. See emulator.h.

#include "tests/emulated/running.h"
#include "tests/emulated/streams.h"

#include <cstring>
#include <map>
#include <memory>
#include <vector>

namespace tersor::emulator {

using kernels::Access;

namespace {

struct ByteHistory {
  Stamp read, change;
  bool written = false;
};

/// A span, and what happened to each of its bytes.
struct Span {
  const std::byte* begin;
  std::size_t bytes;
  std::string label;
  std::vector<ByteHistory> history;
};

std::map<const std::byte*, std::unique_ptr<Span>>& spans() {
  static std::map<const std::byte*, std::unique_ptr<Span>> all;
  return all;
}

Span* last_found = nullptr;

Span* find_span(const void* pointer, std::size_t bytes) {
  const auto* address = static_cast<const std::byte*>(pointer);
  const auto holds = [&](const Span& span) {
    return address >= span.begin && address + bytes <= span.begin + span.bytes;
  };
  if (last_found != nullptr && holds(*last_found)) return last_found;
  auto next = spans().upper_bound(address);
  if (next == spans().begin()) return nullptr;
  Span& span = *std::prev(next)->second;
  return holds(span) ? last_found = &span : nullptr;
}

const char* verb(Access access) {
  return access == Access::kRead ? "reads" : access == Access::kWrite ? "writes" : "adds to";
}

std::string who(const Stamp& stamp) {
  if (stamp.thread == kSeveral) return "several threads";
  return "thread " + std::to_string(stamp.thread) + " of block " + std::to_string(stamp.block);
}

std::string at(const Span& span, const void* pointer) {
  return "byte " + std::to_string(static_cast<const std::byte*>(pointer) - span.begin) + " of " +
         span.label;
}

/// True where a barrier, a launch or the order of `is_last` lies between both.
bool ordered(const Stamp& before, const Stamp& now) {
  if (before.thread == kNobody || before.launch != now.launch) return true;
  if (before.block != now.block) return now.phase == Phase::kLast && before.phase == Phase::kBefore;
  return before.thread == now.thread || before.epoch < now.epoch;
}

void check_order(const Span& span, const void* pointer, const Stamp& before, const Stamp& now) {
  if (ordered(before, now)) return;
  if (before.access == Access::kAtomic && now.access == Access::kAtomic) return;
  fail(std::string(verb(now.access)) + " " + at(span, pointer) + ", which " + who(before) + " " +
       verb(before.access) + " with no barrier in between");
}

/// Readers of one epoch are kept as one thread or as several.
void note_read(Stamp& last, const Stamp& now) {
  const bool joins = last.launch == now.launch && last.thread != kNobody && !ordered(last, now);
  const bool same = last.thread == now.thread && last.block == now.block;
  const std::uint32_t thread = joins && !same ? kSeveral : now.thread;
  last = now;
  last.thread = thread;
}

void visit_byte(const Span& span, ByteHistory& history, const std::byte* pointer,
                const Stamp& now) {
  check_order(span, pointer, history.change, now);
  if (now.access == Access::kRead) {
    if (!history.written) fail("reads " + at(span, pointer) + ", which was never written");
    return note_read(history.read, now);
  }
  check_order(span, pointer, history.read, now);
  if (now.access == Access::kAtomic && !history.written)
    fail("adds to " + at(span, pointer) + ", which was never written");
  history.change = now;
  history.written = true;
}

}  // namespace

Region::Region(const void* memory, std::size_t bytes, Written written, std::string label)
    : memory_(bytes == 0 ? nullptr : memory) {
  if (bytes == 0) return;
  const auto* begin = static_cast<const std::byte*>(memory);
  auto span = std::make_unique<Span>(Span{begin, bytes, std::move(label), {}});
  span->history.resize(bytes);
  for (ByteHistory& byte : span->history) byte.written = written == Written::kYes;
  const Guard guard = lock_device();
  if (!spans().emplace(begin, std::move(span)).second)
    throw std::logic_error("two spans of device memory begin at one address");
}

Region::~Region() {
  const Guard guard = lock_device();
  last_found = nullptr;
  if (memory_ != nullptr) spans().erase(static_cast<const std::byte*>(memory_));
}

bool is_known(const void* pointer, std::size_t bytes) {
  const Guard guard = lock_device();
  return find_span(pointer, bytes) != nullptr;
}

void mark(const void* pointer, std::size_t bytes, Written written) {
  const Guard guard = lock_device();
  Span* span = find_span(pointer, bytes);
  if (span == nullptr) return;
  const std::size_t first = static_cast<const std::byte*>(pointer) - span->begin;
  for (std::size_t i = 0; i < bytes; ++i)
    span->history[first + i].written = written == Written::kYes;
}

void clear(void* pointer, std::size_t bytes) {
  const Guard guard = lock_device();
  if (find_span(pointer, bytes) == nullptr)
    throw EmulatorError("zeros are to be written outside of all spans of device memory");
  std::memset(pointer, 0, bytes);
  mark(pointer, bytes, Written::kYes);
}

void copy(void* to, const void* from, std::size_t bytes) {
  const Guard guard = lock_device();
  const bool is_inside = find_span(to, bytes) != nullptr && find_span(from, bytes) != nullptr;
  if (!is_inside)
    throw EmulatorError("a copy of " + std::to_string(bytes) +
                        " bytes is to touch memory that is neither the device's nor pinned");
  std::memcpy(to, from, bytes);
  const Span& source = *find_span(from, bytes);
  Span& target = *find_span(to, bytes);
  const std::ptrdiff_t first = static_cast<const std::byte*>(from) - source.begin;
  const std::ptrdiff_t place = static_cast<std::byte*>(to) - target.begin;
  for (std::size_t i = 0; i < bytes; ++i)
    target.history[place + i].written = source.history[first + i].written;
}

}  // namespace tersor::emulator

namespace tersor::kernels {

using namespace emulator;

void emulated_access(const void* pointer, std::size_t bytes, Access access) {
  if (!is_running()) throw EmulatorError("device memory is touched outside of a kernel");
  Span* span = find_span(pointer, bytes);
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0)
    fail(std::string(verb(access)) + " " + std::to_string(bytes) +
         " bytes at an address that is no multiple of as many");
  if (span == nullptr)
    fail(std::string(verb(access)) + " " + std::to_string(bytes) +
         " bytes outside of all spans of device memory");
  const Stamp now = stamp_of(access);
  const auto* address = static_cast<const std::byte*>(pointer);
  const std::size_t first = address - span->begin;
  for (std::size_t i = 0; i < bytes; ++i)
    visit_byte(*span, span->history[first + i], address + i, now);
}

void emulated_index(std::size_t index, std::size_t count) {
  if (index >= count)
    fail("element " + std::to_string(index) + " of " + std::to_string(count) +
         " in shared memory does not exist");
}

}  // namespace tersor::kernels
