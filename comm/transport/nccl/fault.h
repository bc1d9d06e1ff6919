// The first thing that went wrong with a transport: kept, and thrown by every later call.
#pragma once

#include <tersor/error.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace tersor::nccl {

class Fault {
 public:
  bool is_raised() const { return raised_.load(std::memory_order_acquire); }

  /// False where there was a cause before.
  bool raise(const std::string& cause) {
    const std::lock_guard lock(mutex_);
    if (is_raised()) return false;
    cause_ = cause;
    raised_.store(true, std::memory_order_release);
    return true;
  }

  /// Throws TransportError with the cause, if there is one.
  void check(std::string_view operation) const {
    if (!is_raised()) return;
    if (cause_.starts_with(operation)) throw TransportError(cause_);
    throw TransportError(std::string(operation) + ": " + cause_);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> raised_{false};
  std::string cause_;  // never written again once it is raised
};

}  // namespace tersor::nccl
