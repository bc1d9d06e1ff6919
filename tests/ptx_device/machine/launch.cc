// Runs a launch. Each host thread takes blocks from the launch and keeps many blocks active. The
// blocks run in time slices, in an order drawn from the seed.
#include "tests/ptx_device/machine/late_stores.h"
#include "tests/ptx_device/machine/machine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <thread>

namespace ptx {
namespace {

constexpr std::uint64_t kSlice = 1'000'000;   // instructions of a block before another block runs
constexpr std::size_t kMostBlocks = 64;       // active on a host thread
constexpr std::uint64_t kLateSlice = 20'000;  // if other blocks wait for held-back stores
constexpr std::uint64_t kLateSlices = 8;      // on average, between publications of late stores
constexpr std::uint64_t kMixed = 8;           // blocks with random order

/// Helper threads running blocks.
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
        for (;;) next()();
      }).detach();
  }
  std::function<void()> next() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !tasks_.empty(); });
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
};

/// The work of one host thread for a launch.
class Worker {
 public:
  explicit Worker(Launch& launch)
      : launch_(launch), order_(mix(settings().seed, launch.number)), random_(order_) {}
  ~Worker() {
    for (auto& block : active_) idle().push_back(std::move(block));
  }

  void run() {
    while (!launch_.failed) {
      if (more_ && active_.size() < kMostBlocks) take();
      if (!active_.empty())
        run_one();
      else if (!more_)
        return;
    }
  }

 private:
  using Blocks = std::vector<std::unique_ptr<Block>>;

  /// Idle blocks kept by this thread.
  static Blocks& idle() {
    thread_local Blocks blocks;
    return blocks;
  }

  /// A block of the same kernel or, if none is idle, the block idle for the longest time.
  std::unique_ptr<Block> room() {
    const auto fits = [&](const auto& block) { return block->fits(launch_); };
    auto found = std::find_if(idle().begin(), idle().end(), fits);
    if (found == idle().end() && idle().size() < kMostBlocks) return std::make_unique<Block>();
    if (found == idle().end()) found = idle().begin();
    std::unique_ptr<Block> block = std::move(*found);
    idle().erase(found);
    return block;
  }

  void take() {
    std::uint64_t index = launch_.next++;
    if (index >= launch_.blocks()) {
      more_ = false;
      return;
    }
    const std::uint64_t first = index / kMixed * kMixed;
    if (first + kMixed <= launch_.blocks())
      index = first + ((index ^ (mix(order_, first) >> 7)) & (kMixed - 1));
    active_.push_back(room());
    active_.back()->start(launch_, index, ranges_);
  }

  void run_one() {
    random_ = mix(random_, active_.size());
    const std::size_t at = (random_ >> 8) % active_.size();
    Block& block = *active_[at];
    try {
      const bool done = block.run(launch_.late == nullptr ? kSlice : kLateSlice);
      if (launch_.late != nullptr && (!done || (random_ >> 32) % kLateSlices == 0))
        launch_.late->let_some_go();
      if (done)
        finish(at);
      else if (block.executed > settings().limit)
        launch_.fail({FaultKind::kFailure, "ptx-device: " + block.kernel->name + " does not end"});
    } catch (const Fault& fault) {
      launch_.fail(fault);
    }
  }

  void finish(std::size_t at) {
    launch_.executed += active_[at]->executed;
    launch_.executed_lanes += active_[at]->executed_lanes;
    idle().push_back(std::move(active_[at]));
    active_[at] = std::move(active_.back());
    active_.pop_back();
  }

  Launch& launch_;
  const std::uint64_t order_;  // the same on all threads
  std::uint64_t random_;
  Blocks active_;
  Ranges ranges_;
  bool more_ = true;
};

/// The helpers working for a launch.
struct Join {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned running = 0;
  bool closed = false;

  bool enter() {
    const std::lock_guard lock(mutex);
    if (!closed) ++running;
    return !closed;
  }
  void leave() {
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_one();
  }
  /// Does not wait for busy helpers.
  void close() {
    std::unique_lock lock(mutex);
    closed = true;
    changed.wait(lock, [&] { return running == 0; });
  }
};

void run_with_helpers(Launch& launch, unsigned helpers) {
  const auto join = std::make_shared<Join>();
  for (unsigned i = 0; i < helpers; ++i)
    Helpers::get().add([join, &launch] {
      if (!join->enter()) return;
      Worker(launch).run();
      join->leave();
    });
  Worker(launch).run();
  join->close();
}

}  // namespace

void Launch::fail(const Fault& made) {
  const std::lock_guard lock(mutex);
  if (!failed) fault = made;
  failed = true;
}

void run(Launch& launch) {
  const std::uint64_t blocks = launch.blocks(), threads = std::max(settings().threads, 1u);
  const auto helpers = static_cast<unsigned>(std::min(threads, blocks) - 1);
  if (settings().late_stores)
    launch.late = std::make_shared<LateStores>(mix(settings().seed, launch.number));
  // Small launches are faster without helpers.
  if (helpers == 0 || blocks < 4)
    Worker(launch).run();
  else
    run_with_helpers(launch, helpers);
  launch.late = nullptr;
}

}  // namespace ptx
