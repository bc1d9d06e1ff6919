// The emulator's fibres; see emulator.h. A fibre runs until it waits at a barrier; then another one
// is resumed. A round in which no fibre gets on means that some wait for ever.

#include "tests/emulated/running.h"
#include "tests/emulated/streams.h"

#include <cxxabi.h>
#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <random>
#include <vector>

namespace tersor::emulator {

using kernels::Access;

namespace {

constexpr std::size_t kStackBytes = std::size_t{64} << 10;
constexpr unsigned kWarp = 32;

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
  std::vector<std::uint64_t> slots;     // one a thread: what it brings to an operation
  std::vector<std::uint32_t> epochs;    // barriers of the block that each thread has passed
  std::vector<const char*> waiting_at;  // null: not waiting
  std::vector<boost::context::fiber> fibres;
  std::vector<boost::context::fiber*> scheduler;  // where each fibre goes back to
  std::exception_ptr failure;
  bool progress = false;
};

namespace {

BlockState* running = nullptr;  // null: no kernel runs
unsigned running_thread = 0;

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
  const auto inverse = static_cast<std::uint8_t>(~settings().poison);
  std::memset(shared.begin, state.launch_number % 2 == 0 ? settings().poison : inverse,
              state.launch->shared_bytes);
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

bool is_running() { return running != nullptr; }

Stamp stamp_of(Access access) {
  return {running->launch_number,          running->rank, running_thread,
          running->epochs[running_thread], access,        running->phase};
}

void fail(const std::string& what) {
  throw EmulatorError(running->launch->kernel + ", block " + std::to_string(running->rank) +
                      ", thread " + std::to_string(running_thread) + ": " + what);
}

Settings& settings() {
  static Settings all;
  return all;
}

void run(const Launch& launch) {
  const Guard guard = lock_device();
  std::mt19937_64 random(settings().seed + settings().launches);
  const auto number = static_cast<std::uint32_t>(++settings().launches);
  std::vector<unsigned> order(launch.blocks);
  for (unsigned block = 0; block < launch.blocks; ++block) order[block] = block;
  std::shuffle(order.begin(), order.end(), random);
  struct Ending {
    ~Ending() { running = nullptr; }
  } ending;
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
  return exchange(block_.warps[thread_ / kWarp], "warp.shuffle_xor", value,
                  [&] { return static_cast<std::uint32_t>(block_.slots[thread_ ^ mask]); });
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
