// Records events with times for traces.
#pragma once

#include <tersor/transport.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor {

/// A parameter became ready, was encoded, reduced or decoded; a message was under way; the trainer
/// waited.
enum class TraceType : std::uint8_t { kReady, kEncode, kReduce, kDecode, kWire, kWait };

struct TraceEvent {
  TraceType type = TraceType::kReady;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;  ///< 0 if no parameter is concerned
  Clock::time_point begin = {}, end = {};
};

/// The newest events, in preallocated memory. One thread records, and another thread may read
/// concurrently.
class TraceRing {
 public:
  explicit TraceRing(std::size_t capacity) : events_(capacity + kSpare) {}

  void record(const TraceEvent& event) {
    const std::size_t recorded = recorded_.load(std::memory_order_relaxed);
    events_[recorded % events_.size()] = event;
    recorded_.store(recorded + 1, std::memory_order_release);
  }

  /// Calls visit(event), oldest first.
  template <typename Visitor>
  void for_each(const Visitor& visit) const {
    const std::size_t recorded = recorded_.load(std::memory_order_acquire);
    const std::size_t retained = std::min(recorded, events_.size() - kSpare);
    for (std::size_t i = recorded - retained; i < recorded; ++i) visit(events_[i % events_.size()]);
  }

 private:
  static constexpr std::size_t kSpare = 4096;  // events recordable during a concurrent read

  std::vector<TraceEvent> events_;
  std::atomic<std::size_t> recorded_ = 0;
};

}  // namespace tersor
