// A pool of host threads that a codec may use; lent by the caller, one rank a pool.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace tersor {

/// `count` threads (the caller's own among them) that run tasks 0 … tasks - 1 of a loop.
/// Each worker has the default rounding and denormal mode, whatever the caller's is.
/// One `run` at a time; not to be entered from inside a task.
class Threads {
 public:
  /// 0 means all cores of this machine.
  explicit Threads(unsigned count = 1);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  unsigned count() const;

  /// Calls `task(index)` for each index below `tasks`, on any of the threads, and returns when all
  /// are done. The first exception that a task throws is thrown again here.
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
