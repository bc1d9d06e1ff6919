// A thread that calls Python.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace tersor::python {

/// Runs tasks one after the other with the GIL held, which only their waiting gives away.
class PythonThread {
 public:
  using Task = std::function<void()>;

  /// `after`: called after each task without the GIL; may be empty.
  explicit PythonThread(Task after = {});
  ~PythonThread() { finish(); }
  PythonThread(const PythonThread&) = delete;
  PythonThread& operator=(const PythonThread&) = delete;

  /// Any thread may call it. Tasks throw nothing. Dropped after `finish`, with all that it owns: by
  /// then nothing may work on that any more.
  void run(Task task);
  /// Whether the caller is one of its tasks.
  bool is_current() const { return std::this_thread::get_id() == id_; }
  /// Runs what is left, and ends the thread. The GIL must not be held.
  void finish();

 private:
  void work();
  bool next(Task& task);

  const Task after_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool ending_ = false;
  std::atomic<std::thread::id> id_;  // once it runs
  std::thread thread_;
};

}  // namespace tersor::python
