// The first thing that went wrong with a transport: kept, and thrown by every later call.
#pragma once

#include <tersor/error.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace tersor::nccl {

enum class Blame { kRanks, kFrame };

class Fault {
 public:
  bool is_raised() const { return raised_.load(std::memory_order_acquire); }

  /// False where there was a cause before.
  bool raise(const std::string& cause, Blame blame = Blame::kRanks) {
    const std::lock_guard lock(mutex_);
    if (is_raised()) return false;
    cause_ = cause;
    blame_ = blame;
    raised_.store(true, std::memory_order_release);
    return true;
  }

  /// Throws TransportError with the cause, if there is one; once WireError, where a frame is it.
  void check(std::string_view operation) const {
    if (!is_raised()) return;
    const bool named = cause_.starts_with(operation);
    const std::string text = named ? cause_ : std::string(operation) + ": " + cause_;
    if (blame_ == Blame::kFrame && !told_.exchange(true)) throw WireError(text);
    throw TransportError(text);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> raised_{false};
  std::string cause_;  // this and its blame are never written again once it is raised
  Blame blame_ = Blame::kRanks;
  mutable std::atomic<bool> told_{false};  // of a frame
};

}  // namespace tersor::nccl
