// The pool behind <tersor/threads.h>. A run opens a job. Awake workers join the job, claim tasks
// with an atomic counter, and leave. The caller also claims tasks, then closes the job and waits
// for the workers inside. A worker that wakes late finds the job closed and sleeps again, so no
// thread waits for late workers.

#include <tersor/threads.h>

#include "kernels/host/signals.h"
#include "kernels/scalar/float_mode.h"

#include <tersor/error.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tersor {
namespace {

/// How long a thread spins before sleeping: about the cost of a sleep and a wake-up.
constexpr std::chrono::microseconds kSpin{20};

constexpr unsigned kMaxThreads = 4096;

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

unsigned cores() { return std::max(1u, std::thread::hardware_concurrency()); }

/// Returns when `word` differs from `old`: spins for the time `spin`, then sleeps.
void wait_for_change(const std::atomic<std::uint32_t>& word, std::uint32_t old,
                     std::chrono::microseconds spin) {
  const auto deadline = std::chrono::steady_clock::now() + spin;
  while (std::chrono::steady_clock::now() < deadline) {
    for (int attempt = 0; attempt < 16; ++attempt) {
      if (word.load(std::memory_order_acquire) != old) return;
      pause();
    }
  }
  word.wait(old, std::memory_order_acquire);
}

}  // namespace

struct Threads::Pool {
  // The bits of `state`: job number (upper half), open flag, number of workers inside.
  static constexpr std::uint32_t kJob = 1u << 16;
  static constexpr std::uint32_t kOpen = 1u << 15;
  static constexpr std::uint32_t kInside = kOpen - 1;

  explicit Pool(unsigned threads) : spin(threads <= cores() ? kSpin : std::chrono::microseconds{}) {
    const kernels::SignalsBlocked quiet;
    workers.reserve(threads - 1);
    try {
      for (unsigned worker = 1; worker < threads; ++worker)
        workers.emplace_back([this] { work(); });
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Pool() { stop(); }

  void stop() {
    stopping.store(true, std::memory_order_relaxed);
    state.fetch_add(kJob, std::memory_order_release);
    state.notify_all();
    if (owner_process == getpid())
      for (std::thread& worker : workers) worker.join();
    else  // a forked process has no copies of the threads
      new std::vector<std::thread>(std::move(workers));
  }

  void run(std::size_t count, void (*function)(void*, std::size_t), void* argument) {
    task = function;
    context = argument;
    tasks = count;
    failed.clear();
    next.store(0, std::memory_order_relaxed);
    state.store((state.load(std::memory_order_relaxed) / kJob + 1) * kJob | kOpen,
                std::memory_order_seq_cst);
    state.notify_all();
    claim_tasks();
    close();
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  /// Closes the job and waits for the workers inside.
  void close() {
    state.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (;;) {
      const std::uint32_t seen = left.load(std::memory_order_acquire);
      if ((state.load(std::memory_order_acquire) & kInside) == 0) return;
      wait_for_change(left, seen, spin);
    }
  }

  void claim_tasks() {
    std::size_t index;
    while ((index = next.fetch_add(1, std::memory_order_relaxed)) < tasks) {
      try {
        task(context, index);
      } catch (...) {
        if (!failed.test_and_set()) failure = std::current_exception();
      }
    }
  }

  void work() {
    const kernels::DefaultFloatMode mode;
    std::uint32_t last_job = 0;
    for (;;) {
      // The order matters: a worker that sees the state written by stop() must also see `stopping`.
      std::uint32_t seen = state.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      if ((seen & kOpen) == 0 || seen / kJob == last_job) {
        wait_for_change(state, seen, spin);
      } else if (state.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
        last_job = seen / kJob;
        claim_tasks();
        leave();
      }
    }
  }

  void leave() {
    state.fetch_sub(1, std::memory_order_acq_rel);
    left.fetch_add(1, std::memory_order_release);
    left.notify_one();
  }

  const std::chrono::microseconds spin;
  std::vector<std::thread> workers;
  const pid_t owner_process = getpid();

  void (*task)(void*, std::size_t) = nullptr;
  void* context = nullptr;
  std::size_t tasks = 0;
  std::exception_ptr failure;
  std::atomic_flag failed;

  alignas(64) std::atomic<std::size_t> next{0};
  alignas(64) std::atomic<std::uint32_t> state{0};
  std::atomic<std::uint32_t> left{0};  // incremented when a worker leaves a job
  std::atomic<bool> stopping{false};
};

Threads::Threads(unsigned count) {
  if (count == 0) count = cores();
  if (count > kMaxThreads)
    throw InvalidArgumentError("threads is " + std::to_string(count) + ": give at most " +
                               std::to_string(kMaxThreads));
  if (count > 1) pool_ = std::make_unique<Pool>(count);
}

Threads::~Threads() = default;

unsigned Threads::count() const {
  return pool_ ? static_cast<unsigned>(pool_->workers.size()) + 1 : 1;
}

void Threads::run_erased(std::size_t tasks, void (*task)(void*, std::size_t), void* context) {
  const kernels::DefaultFloatMode mode;
  if (pool_ && tasks > 1) return pool_->run(tasks, task, context);
  for (std::size_t index = 0; index < tasks; ++index) task(context, index);
}

}  // namespace tersor
