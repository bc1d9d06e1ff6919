// A pool of host threads for codecs. The caller owns the pool and uses one pool per rank.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace tersor {

/// A pool of `count` threads, including the calling thread, that runs tasks 0 … tasks - 1 of a
/// loop. Each worker uses the default rounding and denormal mode, regardless of the caller's mode.
/// Only one `run` may be active at a time. A task must not call `run` on its own pool.
class Threads {
 public:
  /// Starts count - 1 workers. The default is only the calling thread; 0 means all cores
  /// of this machine. Throws InvalidArgumentError for more than 4,096 threads.
  explicit Threads(unsigned count = 1);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  /// Returns the number of threads, including the calling thread.
  unsigned count() const;

  /// Calls `task(index)` for each index below `tasks` on any thread of the pool. Returns after all
  /// tasks. If tasks throw, `run` rethrows the first exception after the last task.
  template <typename Task>
  void run(std::size_t tasks, Task&& task) {
    run_erased(
        tasks,
        [](void* context, std::size_t index) {
          (*static_cast<std::remove_reference_t<Task>*>(context))(index);
        },
        const_cast<void*>(static_cast<const void*>(&task)));
  }

 private:
  void run_erased(std::size_t tasks, void (*task)(void*, std::size_t), void* context);

  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace tersor
