// The first fault of a transport. Every later call throws this fault.
#pragma once

#include <tersor/error.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>

namespace tersor::nccl {

enum class FaultSource { kRanks, kFrame };

class Fault {
 public:
  bool is_raised() const { return raised_.load(std::memory_order_acquire); }

  /// Returns false if a fault was raised before.
  bool raise(const std::string& cause, FaultSource source = FaultSource::kRanks) {
    const std::lock_guard lock(mutex_);
    if (is_raised()) return false;
    cause_ = cause;
    source_ = source;
    raised_.store(true, std::memory_order_release);
    return true;
  }

  /// Throws TransportError with the cause, if raised. The first call throws WireError if a frame is
  /// to blame.
  void check(std::string_view operation) const {
    if (!is_raised()) return;
    const bool named = cause_.starts_with(operation);
    const std::string text = named ? cause_ : std::string(operation) + ": " + cause_;
    if (source_ == FaultSource::kFrame && !thrown_.exchange(true)) throw WireError(text);
    throw TransportError(text);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> raised_{false};
  std::string cause_;  // `cause_` and `source_` are constant once raised
  FaultSource source_ = FaultSource::kRanks;
  mutable std::atomic<bool> thrown_{false};  // True if WireError was thrown
};

}  // namespace tersor::nccl
