// Implements link_probe.h. All ranks send to all ranks at once, as in the collectives. The
// measurement therefore includes both directions and the actual number of ranks per core.
#include "comm/tuning/link_probe.h"

#include "comm/collectives/context.h"
#include "comm/collectives/host_copy.h"
#include "comm/transport/host/envelope.h"

#include <tersor/buffer.h>
#include <tersor/stream.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <vector>

namespace tersor {
namespace {

constexpr std::size_t kTinyBytes = 16;
constexpr std::size_t kFirstBytes = 4096;                // to each peer
constexpr std::size_t kMaxBytes = std::size_t{4} << 20;  // to each peer
constexpr std::size_t kPeerStride = 64;  // distinct bytes per peer, so no bytes are sent twice
constexpr double kMinSeconds = 2e-3;     // seconds per exchange
// Or this multiple of the latency, because ranks start up to a latency apart.
constexpr double kMinLatencies = 16;
constexpr std::size_t kRepeats = 3;
constexpr std::size_t kTinyRepeats = 15;
constexpr int kExchangesAtOnce = 8;
constexpr std::size_t kEnvelopeBytes = sizeof(host::Envelope);

/// CPU time of the calling thread.
double core_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

Operation operation_of(Transport& transport, std::chrono::milliseconds timeout) {
  return {.name = "auto", .tag = transport.reserve_tags(1), .timeout = timeout};
}

using Reduce = Handle (Transport::*)(const Operation&, std::span<const ValueSpan>);

/// Sum or maximum over ranks, in place, in a memory the transport accepts. The few values form a
/// single part.
void reduce_floats(Transport& transport, Reduce reduce, std::span<float> values,
                   std::chrono::milliseconds timeout, std::uint64_t signature = 0,
                   std::shared_ptr<const Agreement> agreement = {}) {
  std::vector<ValueSpan> parts(static_cast<std::size_t>(transport.ranks()));
  parts.front() = values;
  Operation operation = operation_of(transport, timeout);
  operation.signature = signature;
  operation.agreement = std::move(agreement);
  if (transport.traits().host) return (transport.*reduce)(operation, parts).wait_synchronize();
  const Stream stream;
  const Buffer memory(values.size_bytes(), Memory::kDevice);
  parts.front() = memory.values(values.size(), Dtype::kF32);
  operation.memory = Memory::kDevice;
  operation.stream = stream.view();
  from_floats(values, 1.0f, parts.front(), stream.view());
  (transport.*reduce)(operation, parts).wait_synchronize();
  const std::vector<float> reduced = to_floats(parts.front(), stream.view());
  std::copy(reduced.begin(), reduced.end(), values.begin());
}

struct ExchangeTimes {
  double seconds = 0;
  double core_seconds = 0;
};

/// The exchanges of one probe.
class Probe {
 public:
  Probe(Transport& transport, Memory memory, std::chrono::milliseconds timeout)
      : transport_(transport),
        timeout_(timeout),
        stream_(memory == Memory::kDevice ? std::make_unique<Stream>() : nullptr),
        memory_(zeroed_buffer(kMaxBytes + kPeerStride * static_cast<std::size_t>(transport.ranks()),
                              memory, stream_ == nullptr ? StreamView{} : stream_->view())) {}

  double peers() const { return transport_.ranks() - 1; }

  /// Each rank sends `bytes` to each other rank, `burst` times at once. Returns the minimum over
  /// the repeats. Each repeat is the mean over ranks, because the mean cancels different starting
  /// times.
  ExchangeTimes exchange(std::size_t bytes, int burst, std::size_t repeats) {
    std::vector<float> times(2 * repeats);
    for (std::size_t repeat = 0; repeat < repeats; ++repeat) {
      const ExchangeTimes own = exchange_once(bytes, burst);
      times[repeat] = static_cast<float>(own.seconds);
      times[repeats + repeat] = static_cast<float>(own.core_seconds);
    }
    reduce_floats(transport_, &Transport::sum, times, timeout_);
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(repeats);
    const double share = 1.0 / transport_.ranks();
    return {share * double{*std::min_element(times.begin(), middle)},
            share * double{*std::min_element(middle, times.end())}};
  }

 private:
  ExchangeTimes exchange_once(std::size_t bytes, int burst) {
    transport_.barrier(operation_of(transport_, timeout_)).wait_synchronize();
    const auto start = Clock::now();
    const double core_start = core_seconds();
    std::vector<Handle> handles;
    for (int i = 0; i < burst; ++i) handles.push_back(begin(bytes));
    for (Handle& handle : handles) handle.wait_synchronize();
    if (stream_ != nullptr) stream_->synchronize();
    return {seconds_since(start), core_seconds() - core_start};
  }

  Handle begin(std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(transport_.ranks());
    std::vector<ConstByteSpan> sends;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      sends.push_back(ConstByteSpan(memory_.span()).subspan(rank * kPeerStride, bytes));
    const std::vector<std::size_t> capacities(ranks, bytes);
    Operation operation = operation_of(transport_, timeout_);
    operation.memory = memory_.memory();
    if (stream_ != nullptr) operation.stream = stream_->view();
    return transport_.all_to_all(operation, sends, capacities);
  }

  Transport& transport_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<Stream> stream_;  ///< for device memory
  Buffer memory_;
};

// Doubles the bytes until the exchange is long compared with latency and clock resolution. All
// ranks see the same times and stop at the same size.
ExchangeTimes times_per_byte(Probe& probe, const ExchangeTimes& tiny) {
  ExchangeTimes times;
  std::size_t bytes = kFirstBytes;
  for (;; bytes *= 2) {
    times = probe.exchange(bytes, 1, kRepeats);
    if (bytes >= kMaxBytes || times.seconds > std::max(kMinSeconds, kMinLatencies * tiny.seconds))
      break;
  }
  const double more = probe.peers() * static_cast<double>(bytes - kTinyBytes);
  return {std::max(0.0, times.seconds - tiny.seconds) / more,
          std::max(0.0, times.core_seconds - tiny.core_seconds) / more};
}

}  // namespace

void agree_on_maximum(Transport& transport, std::span<float> values,
                      std::chrono::milliseconds timeout, std::uint64_t signature,
                      std::shared_ptr<const Agreement> agreement) {
  reduce_floats(transport, &Transport::maximum, values, timeout, signature, std::move(agreement));
}

LinkFigures probe_link(Transport& transport, Memory memory, std::chrono::milliseconds timeout) {
  if (transport.ranks() == 1) return {};
  Probe probe(transport, memory, timeout);
  probe.exchange(kTinyBytes, 1, 2);  // the first messages of a channel are slower
  const ExchangeTimes tiny = probe.exchange(kTinyBytes, 1, kTinyRepeats);
  const ExchangeTimes burst = probe.exchange(kTinyBytes, kExchangesAtOnce, kTinyRepeats);
  const ExchangeTimes per_byte = times_per_byte(probe, tiny);
  const double bytes_seconds = double{kTinyBytes + kEnvelopeBytes} * per_byte.seconds;
  const double further = std::max(0.0, burst.seconds - tiny.seconds) / (kExchangesAtOnce - 1);
  const double per_message = std::max(0.0, further / probe.peers() - bytes_seconds);
  return {.latency = std::max(0.0, tiny.seconds - probe.peers() * (per_message + bytes_seconds)),
          .seconds_per_byte = per_byte.seconds,
          .seconds_per_message = per_message,
          .core_seconds_per_byte = per_byte.core_seconds};
}

}  // namespace tersor
