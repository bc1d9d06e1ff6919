// The state shared by the steps of an exchange, and the counters.
#pragma once

#include "comm/collectives/plan.h"
#include "comm/collectives/trace.h"

#include <tersor/agreement.h>
#include <tersor/codec.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

class Hierarchy;

/// Work done for a parameter since the counters were last cleared. Seconds and bytes of a frame are
/// divided among the frame's parameters in proportion to the counts.
struct ParamCounters {
  std::uint64_t sent_bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// All properties fixed during an exchange.
struct ExchangeContext {
  Transport* transport = nullptr;
  Transport* adder = nullptr;  ///< sums raw values: the transport or a split of it
  int rank = 0;
  int ranks = 1;
  Grid grid = {};                        ///< of all ranks, if there is no hierarchy
  const Hierarchy* hierarchy = nullptr;  ///< null: all ranks exchange with all ranks
  std::span<const ExchangeParameter> params;
  std::string_view name;  ///< of the operation, for error texts
  std::uint64_t signature = 0;
  std::shared_ptr<const Agreement> agreement = {};  ///< the options behind the signature
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                 ///< used without `words`
  const StateWords* words = nullptr;      ///< null: stateless
  Reduction reduction = Reduction::kSum;  ///< a mean is divided during addition (Shard::shares)
  Checksum checksum = Checksum::kOn;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  Threads* threads = nullptr;
  std::size_t whole_bytes = 0;    ///< of native sums whose order is left to the transport
  Memory memory = Memory::kHost;  ///< of all values, states, words and messages
  // On a device: the stream for all work, the report of damaged frames, and the overflow counter.
  // `in_order` is true if only a single chunk is under way.
  StreamView stream = {};
  FrameFault* fault = nullptr;
  std::uint64_t* device_overflows = nullptr;
  bool in_order = false;

  std::uint32_t step_on_host() const {
    return words == nullptr || on_device() ? step : words->step;
  }
  unsigned thread_count() const { return threads == nullptr ? 1 : threads->count(); }
  bool on_device() const { return memory == Memory::kDevice; }
  /// True if the library below runs everything on the device and adds in its own order.
  bool queues() const { return on_device() && transport->traits().queues; }

  void set_agreement(Agreement own) {
    signature = own.signature();
    agreement = std::make_shared<const Agreement>(std::move(own));
  }

  std::vector<ParamCounters> counters = {};  ///< one per parameter
  std::uint64_t overflows = 0;
  TraceRing* trace = nullptr;  ///< of host work, if requested
};

/// The bracket of a device call's operations.
inline Operation bracket_of(const ExchangeContext& context) {
  return {.name = context.name,
          .signature = context.signature,
          .agreement = context.agreement,
          .timeout = context.timeout,
          .memory = context.memory,
          .stream = context.stream};
}

/// Seconds since `start`.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The chunk length from the call's options, by default from the transport.
inline std::size_t chunk_count_of(const Transport& transport, std::size_t wanted) {
  return wanted != 0 ? wanted : transport.traits().chunk_count;
}

}  // namespace tersor
