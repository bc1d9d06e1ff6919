// What was done when, for whoever asks for a trace.
#pragma once

#include <tersor/transport.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor {

/// A parameter became ready; is encoded, its sum reduced, decoded; something was on its way; the
/// trainer waited.
enum class Traced : std::uint8_t { kReady, kEncode, kReduce, kDecode, kWire, kWait };

struct TraceEvent {
  Traced what = Traced::kReady;
  std::uint32_t step = 0;
  std::uint32_t parameter = 0;  ///< of none: 0
  Clock::time_point begin = {}, end = {};
};

/// The newest events, in memory that is there from the beginning: one thread records, and another
/// may look at them meanwhile.
class TraceRing {
 public:
  explicit TraceRing(std::size_t capacity) : events_(capacity + kSpare) {}

  void record(const TraceEvent& event) {
    const std::size_t recorded = recorded_.load(std::memory_order_relaxed);
    events_[recorded % events_.size()] = event;
    recorded_.store(recorded + 1, std::memory_order_release);
  }

  /// Calls visit(event), the oldest first.
  template <typename Visitor>
  void for_each(const Visitor& visit) const {
    const std::size_t recorded = recorded_.load(std::memory_order_acquire);
    const std::size_t kept = std::min(recorded, events_.size() - kSpare);
    for (std::size_t i = recorded - kept; i < recorded; ++i) visit(events_[i % events_.size()]);
  }

 private:
  static constexpr std::size_t kSpare = 4096;  // that may be recorded while somebody looks

  std::vector<TraceEvent> events_;
  std::atomic<std::size_t> recorded_ = 0;
};

}  // namespace tersor
