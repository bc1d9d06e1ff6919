// What was done when, for whoever asks for a trace.
#pragma once

#include <tersor/transport.h>

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

/// The newest events, in memory that is there from the beginning; for one thread at a time.
class TraceRing {
 public:
  explicit TraceRing(std::size_t capacity) : events_(capacity) {}

  void record(const TraceEvent& event) { events_[recorded_++ % events_.size()] = event; }

  /// Calls visit(event), the oldest first.
  template <typename Visitor>
  void for_each(const Visitor& visit) const {
    const std::size_t size = events_.size(), first = recorded_ < size ? 0 : recorded_ - size;
    for (std::size_t i = first; i < recorded_; ++i) visit(events_[i % size]);
  }

 private:
  std::vector<TraceEvent> events_;
  std::size_t recorded_ = 0;
};

}  // namespace tersor
