// What the steps of one exchange share, and what they count.
#pragma once

#include "comm/collectives/plan.h"
#include "comm/collectives/trace.h"

#include <tersor/codec.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace tersor {

class Hierarchy;

/// What was done for one slot since the counters were last cleared. Seconds and bytes of a frame
/// are shared out among its slots by their counts.
struct SlotCounters {
  std::uint64_t sent_bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// Everything that is fixed while an exchange runs.
struct ExchangeContext {
  Transport* transport = nullptr;
  Transport* adder = nullptr;  ///< sums bare values: the transport, or one of its splits
  int rank = 0;
  int ranks = 1;
  Grid grid = {};                        ///< of all ranks, where there is no hierarchy
  const Hierarchy* hierarchy = nullptr;  ///< null: all ranks exchange with all
  std::span<const Slot> slots;
  std::string_view name;  ///< of the operation, for messages
  std::uint64_t signature = 0;
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                 ///< where there are no words
  const StateWords* words = nullptr;      ///< null: stateless
  Reduction reduction = Reduction::kSum;  ///< a mean is divided where it is added (Lane::shares)
  Checksum checksum = Checksum::kOn;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  Threads* threads = nullptr;
  std::size_t whole_bytes = 0;    ///< of native sums whose order is left to the transport
  Memory memory = Memory::kHost;  ///< of all values, states, words and messages
  // On a device: where everything is queued, where damaged frames are reported, where overflows are
  // counted, and whether only one chunk is under way.
  StreamView stream = {};
  FrameFault* fault = nullptr;
  std::uint64_t* device_overflows = nullptr;
  bool in_order = false;

  std::uint32_t step_on_host() const {
    return words == nullptr || on_device() ? step : words->step;
  }
  unsigned thread_count() const { return threads == nullptr ? 1 : threads->count(); }
  bool on_device() const { return memory == Memory::kDevice; }
  /// The library below does all on the device, and adds in an order of its own.
  bool queues() const { return on_device() && transport->traits().queues; }

  std::vector<SlotCounters> counters = {};  ///< one a slot
  std::uint64_t overflows = 0;
  TraceRing* trace = nullptr;  ///< of what is done on the host, where it is asked for
};

/// What brackets the operations of a call on a device.
inline Operation bracket_of(const ExchangeContext& context) {
  return {.name = context.name,
          .signature = context.signature,
          .timeout = context.timeout,
          .memory = context.memory,
          .stream = context.stream};
}

/// Seconds since `start`.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What a call's options ask for, or the transport.
inline std::size_t chunk_count_of(const Transport& transport, std::size_t wanted) {
  return wanted != 0 ? wanted : transport.traits().chunk_count;
}

}  // namespace tersor
