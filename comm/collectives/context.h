// The state shared by the steps of an exchange, and the counters.
#pragma once

#include "comm/collectives/ranks.h"
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

/// Work done for a parameter since the counters were last cleared. Seconds and bytes of a frame are
/// divided among the frame's parameters in proportion to the counts.
struct ParamCounters {
  std::uint64_t sent_bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};

/// The properties of a call that its operations and codecs share.
struct ExchangeCall {
  std::string_view name;                            ///< of the operation, for error texts
  std::shared_ptr<const Agreement> agreement = {};  ///< the options behind the signature
  std::uint64_t seed = 0;
  std::uint32_t step = 0;                 ///< used without `words`
  const StateWords* words = nullptr;      ///< null: stateless
  Reduction reduction = Reduction::kSum;  ///< a mean is divided during addition (Shard::divisors)
  Checksum checksum = Checksum::kOn;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  std::size_t whole_bytes = 0;  ///< of native sums whose order is left to the transport
};

/// The work on a device: the stream for all work, the report of damaged frames, and the overflow
/// counter.
struct DeviceWork {
  StreamView stream = {};
  FrameFault* fault = nullptr;
  std::uint64_t* overflows = nullptr;
  bool in_order = false;  ///< True if only a single chunk is under way
};

/// All properties fixed during an exchange, and the counters.
struct ExchangeContext : ExchangeShape {
  Transport* transport = nullptr;
  Transport* sum_transport = nullptr;  ///< sums raw values: the transport or a split of it
  // One entry per parameter:
  std::span<const ParameterBinding> bindings;
  std::span<const ParameterFeedback> feedback;
  ExchangeCall call;
  DeviceWork device;
  std::vector<ParamCounters> counters = {};  ///< one per parameter
  std::uint64_t overflows = 0;
  TraceRing* trace = nullptr;  ///< of host work, if requested

  std::uint32_t step_on_host() const {
    return call.words == nullptr || on_device() ? call.step : call.words->step;
  }
  void set_agreement(Agreement own) {
    signature = own.signature();
    call.agreement = std::make_shared<const Agreement>(std::move(own));
  }
  void set_memory(Memory of_values) {
    memory = of_values;
    queues = on_device() && transport->traits().queues;
  }
  /// An operation of the host.
  Operation operation(std::string_view name) const {
    return {.name = name,
            .signature = signature,
            .agreement = call.agreement,
            .tag = transport->reserve_tags(1),
            .timeout = call.timeout};
  }
};

/// The bracket of a device call's operations.
inline Operation bracket_of(const ExchangeContext& context) {
  return {.name = context.call.name,
          .signature = context.signature,
          .agreement = context.call.agreement,
          .timeout = context.call.timeout,
          .memory = context.memory,
          .stream = context.device.stream};
}

/// Seconds since `start`.
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The chunk length from the call's options, by default from the transport.
inline std::size_t chunk_count_of(const Transport& transport, std::size_t requested) {
  return requested != 0 ? requested : transport.traits().chunk_count;
}

}  // namespace tersor
