// See emulator.h. A fibre runs until it waits at a barrier; then another one is resumed. A round in
// which no fibre gets on means that some wait for ever.

#include "tests/emulated/emulator.h"

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <vector>

namespace tersor::emulator {

using kernels::Access;

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr unsigned kWarp = 32;
constexpr std::uint32_t kNobody = 0xffffffffu;
constexpr std::uint32_t kSeveral = 0xfffffffeu;

/// Where a block stands in the order that `is_last` makes.
enum class Phase : std::uint8_t { kBefore, kAfterTicket, kLast };

/// Who touched a byte last, and when.
struct Stamp {
  std::uint32_t launch = 0;
  std::uint32_t block = 0;
  std::uint32_t thread = kNobody;
  std::uint32_t epoch = 0;
  Access access = Access::kRead;
  Phase phase = Phase::kBefore;
};

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

/// Threads that wait for each other, and what for.
struct Barrier {
  unsigned expected = 0, arrived = 0, generation = 0;
  const char* operation = nullptr;
};

}  // namespace

struct BlockState {
  const Launch* launch = nullptr;
  std::uint32_t launch_number = 0;
  unsigned rank = 0;
  Phase phase = Phase::kBefore;
  Barrier all;
  std::vector<Barrier> warps;
  std::vector<std::uint64_t> slots;       // one a thread: what it brings to an operation
  std::vector<std::uint32_t> epochs;      // barriers of the block that each thread has passed
  std::vector<const char*> waiting_at;    // null: not waiting
  std::vector<boost::context::fiber> fibres;
  std::vector<boost::context::fiber*> scheduler;  // where each fibre goes back to
  std::exception_ptr failure;
  bool progress = false;
};

namespace {

BlockState* running = nullptr;  // null: no kernel runs
unsigned running_thread = 0;

std::string place() {
  return running->launch->kernel + ", block " + std::to_string(running->rank) + ", thread " +
         std::to_string(running_thread);
}

[[noreturn]] void fail(const std::string& what) { throw EmulatorError(place() + ": " + what); }

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
  if (before.block != now.block)
    return now.phase == Phase::kLast && before.phase == Phase::kBefore;
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

void resume_scheduler() {
  const unsigned thread = running_thread;
  boost::context::fiber*& back = running->scheduler[thread];
  *back = std::move(*back).resume();
  running_thread = thread;
}

/// Waits for all threads of a barrier, all of which must wait with the same operation.
void wait(Barrier& barrier, const char* operation) {
  if (barrier.arrived == 0) barrier.operation = operation;
  if (std::strcmp(barrier.operation, operation) != 0)
    fail(std::string("calls ") + operation + " where other threads call " + barrier.operation);
  const unsigned generation = barrier.generation;
  running->progress = true;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  running->waiting_at[running_thread] = operation;
  while (barrier.generation == generation) resume_scheduler();
  running->waiting_at[running_thread] = nullptr;
}

/// Gives each thread what the others brought: everybody has written before anybody reads, and has
/// read before anybody writes again.
template <typename Combine>
auto exchange(Barrier& barrier, const char* operation, std::uint64_t value,
              const Combine& combine) {
  running->slots[running_thread] = value;
  wait(barrier, operation);
  const auto result = combine();
  wait(barrier, operation);
  return result;
}

void pass_barrier(unsigned thread) { ++running->epochs[thread]; }

boost::context::fiber make_fibre(BlockState& state, unsigned thread, void* shared,
                                 boost::context::pooled_fixedsize_stack& stacks) {
  return {std::allocator_arg, stacks, [&state, thread, shared](boost::context::fiber&& back) {
            state.scheduler[thread] = &back;
            try {
              state.launch->body(Block(state, thread), shared);
            } catch (const boost::context::detail::forced_unwind&) {
              throw;
            } catch (...) {
              if (!state.failure) state.failure = std::current_exception();
            }
            state.progress = true;
            return std::move(back);
          }};
}

/// Resumes all fibres in turns, shuffled each time, until all have ended.
void run_fibres(BlockState& state, std::mt19937_64& random) {
  std::vector<unsigned> alive(state.fibres.size());
  for (unsigned thread = 0; thread < alive.size(); ++thread) alive[thread] = thread;
  while (!alive.empty()) {
    std::shuffle(alive.begin(), alive.end(), random);
    state.progress = false;
    for (const unsigned thread : alive) {
      running_thread = thread;
      state.fibres[thread] = std::move(state.fibres[thread]).resume();
      if (state.failure) std::rethrow_exception(state.failure);
    }
    std::erase_if(alive, [&](unsigned thread) { return !state.fibres[thread]; });
    if (state.progress || alive.empty()) continue;
    running_thread = *std::ranges::min_element(alive);
    fail("waits for ever at " + std::string(state.waiting_at[running_thread]) + ": " +
         std::to_string(state.fibres.size() - alive.size()) + " of " +
         std::to_string(state.fibres.size()) + " threads have left, " +
         std::to_string(alive.size()) + " wait");
  }
}

/// What a block needs, kept from block to block.
struct Storage {
  explicit Storage(std::size_t bytes) : memory(bytes + 64) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    begin = memory.data() + (64 - address % 64);
  }
  std::vector<std::byte> memory;
  std::byte* begin;
};

void run_block(BlockState& state, std::mt19937_64& random) {
  static boost::context::pooled_fixedsize_stack stacks(kStackBytes);
  const unsigned threads = state.launch->threads;
  Storage shared(state.launch->shared_bytes);
  std::memset(shared.begin, settings().poison, state.launch->shared_bytes);
  const Region region(shared.begin, state.launch->shared_bytes, Written::kNo, "shared memory");
  state.all.expected = threads;
  state.warps.assign(threads / kWarp, {.expected = kWarp});
  state.slots.assign(threads, 0);
  state.epochs.assign(threads, 0);
  state.waiting_at.assign(threads, nullptr);
  state.scheduler.assign(threads, nullptr);
  for (unsigned thread = 0; thread < threads; ++thread)
    state.fibres.push_back(make_fibre(state, thread, shared.begin, stacks));
  run_fibres(state, random);
}

}  // namespace

Settings& settings() {
  static Settings all;
  return all;
}

Region::Region(const void* memory, std::size_t bytes, Written written, std::string label)
    : memory_(bytes == 0 ? nullptr : memory) {
  if (bytes == 0) return;
  const auto* begin = static_cast<const std::byte*>(memory);
  auto span = std::make_unique<Span>(Span{begin, bytes, std::move(label), {}});
  span->history.resize(bytes);
  for (ByteHistory& byte : span->history) byte.written = written == Written::kYes;
  if (!spans().emplace(begin, std::move(span)).second)
    throw std::logic_error("two spans of device memory begin at one address");
}

Region::~Region() {
  last_found = nullptr;
  if (memory_ != nullptr) spans().erase(static_cast<const std::byte*>(memory_));
}

bool is_known(const void* pointer) { return find_span(pointer, 0) != nullptr; }

void mark(const void* pointer, std::size_t bytes, Written written) {
  Span* span = find_span(pointer, bytes);
  if (span == nullptr) return;
  const std::size_t first = static_cast<const std::byte*>(pointer) - span->begin;
  for (std::size_t i = 0; i < bytes; ++i) span->history[first + i].written = written == Written::kYes;
}

void clear(void* pointer, std::size_t bytes) {
  if (find_span(pointer, bytes) == nullptr)
    throw EmulatorError("zeros are to be written outside of all spans of device memory");
  std::memset(pointer, 0, bytes);
  mark(pointer, bytes, Written::kYes);
}

void run(const Launch& launch) {
  std::mt19937_64 random(settings().seed + settings().launches);
  const auto number = static_cast<std::uint32_t>(++settings().launches);
  std::vector<unsigned> order(launch.blocks);
  for (unsigned block = 0; block < launch.blocks; ++block) order[block] = block;
  std::shuffle(order.begin(), order.end(), random);
  struct Guard {
    ~Guard() { running = nullptr; }
  } guard;
  for (const unsigned block : order) {
    BlockState state;
    state.launch = &launch;
    state.launch_number = number;
    state.rank = block;
    running = &state;
    run_block(state, random);
  }
}

std::string readable_name(const char* mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), &std::free);
  return name == nullptr ? mangled : name.get();
}

unsigned Block::threads() const { return state_.launch->threads; }
unsigned Block::rank() const { return state_.rank; }
unsigned Block::blocks() const { return state_.launch->blocks; }

void Block::sync() const {
  wait(state_.all, "block.sync");
  pass_barrier(thread_);
}

bool Block::any(bool flag) const {
  const bool found = exchange(state_.all, "block.any", flag, [&] {
    return std::ranges::any_of(state_.slots, [](std::uint64_t slot) { return slot != 0; });
  });
  pass_barrier(thread_);
  return found;
}

std::uint64_t Block::exclusive_sum(std::uint64_t value, std::uint64_t& total) const {
  const std::uint64_t before = exchange(state_.all, "block.exclusive_sum", value, [&] {
    std::uint64_t sum = 0, mine = 0;
    for (unsigned thread = 0; thread < threads(); ++thread) {
      if (thread == thread_) mine = sum;
      sum += state_.slots[thread];
    }
    total = sum;
    return mine;
  });
  pass_barrier(thread_);
  return before;
}

bool Block::is_last(std::uint32_t* ticket) const {
  sync();
  bool last = false;
  if (thread_ == 0) {
    last = kernels::atomic_add(ticket, 1u) == blocks() - 1;
    state_.phase = last ? Phase::kLast : Phase::kAfterTicket;
  }
  return any(last);
}

std::uint32_t Warp::maximum(std::uint32_t value) const {
  return exchange(block_.warps[thread_ / kWarp], "warp.maximum", value, [&] {
    const auto first = block_.slots.begin() + thread_ / kWarp * kWarp;
    return static_cast<std::uint32_t>(*std::max_element(first, first + kWarp));
  });
}

std::uint32_t Warp::shuffle_xor(std::uint32_t value, unsigned mask) const {
  return exchange(block_.warps[thread_ / kWarp], "warp.shuffle_xor", value, [&] {
    return static_cast<std::uint32_t>(block_.slots[thread_ ^ mask]);
  });
}

std::uint32_t Warp::ballot(bool flag) const {
  return exchange(block_.warps[thread_ / kWarp], "warp.ballot", flag, [&] {
    std::uint32_t bits = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane)
      if (block_.slots[thread_ / kWarp * kWarp + lane] != 0) bits |= 1u << lane;
    return bits;
  });
}

std::uint64_t Warp::sum(std::uint64_t value) const {
  return exchange(block_.warps[thread_ / kWarp], "warp.sum", value, [&] {
    std::uint64_t all = 0;
    for (unsigned lane = 0; lane < kWarp; ++lane)
      all += block_.slots[thread_ / kWarp * kWarp + lane];
    return all;
  });
}

}  // namespace tersor::emulator

namespace tersor::kernels {

using namespace emulator;

void emulated_access(const void* pointer, std::size_t bytes, Access access) {
  if (emulator::running == nullptr)
    throw EmulatorError("device memory is touched outside of a kernel");
  Span* span = find_span(pointer, bytes);
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0)
    fail(std::string(verb(access)) + " " + std::to_string(bytes) +
         " bytes at an address that is no multiple of as many");
  if (span == nullptr)
    fail(std::string(verb(access)) + " " + std::to_string(bytes) +
         " bytes outside of all spans of device memory");
  const Stamp now{running->launch_number,
                  running->rank,
                  running_thread,
                  running->epochs[running_thread],
                  access,
                  running->phase};
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
