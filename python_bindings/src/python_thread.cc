// Implements python_thread.h.
#include "python_bindings/src/python_thread.h"

#include <nanobind/nanobind.h>

#include <utility>

namespace tersor::python {

namespace nb = nanobind;

PythonThread::PythonThread(Task after) : after_(std::move(after)), thread_([this] { work(); }) {}

void PythonThread::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void PythonThread::run(Task task) {
  {
    const std::lock_guard lock(mutex_);
    if (ending_) return;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

// A task may own Python objects: it goes while the GIL is held.
void PythonThread::work() {
  id_ = std::this_thread::get_id();
  const nb::gil_scoped_acquire held;
  Task task;
  while (next(task)) {
    task();
    task = nullptr;
    if (!after_) continue;
    const nb::gil_scoped_release released;
    after_();
  }
}

bool PythonThread::next(Task& task) {
  const nb::gil_scoped_release released;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
  if (tasks_.empty()) return false;
  task = std::move(tasks_.front());
  tasks_.pop_front();
  return true;
}

}  // namespace tersor::python
