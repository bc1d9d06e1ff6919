// Before each run, rank 0 tells rank 1 the number and the size of the messages.

#include "bench/micro/transport_benchmarks.h"

#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstring>
#include <exception>

namespace tersor::bench {
namespace {

const Operation kOperation{.name = "benchmark", .timeout = std::chrono::seconds(60)};

/// The message before a run. No iterations: rank 1 ends.
struct Run {
  std::uint64_t iterations = 0;
  std::uint64_t bytes = 0;
  Pattern pattern = Pattern::kPingPong;
};

void send(Transport& transport, ConstByteSpan bytes) {
  transport.send(kOperation, 1 - transport.rank(), bytes).wait_synchronize();
}

Handle receive(Transport& transport, std::size_t capacity) {
  Handle handle = transport.receive(kOperation, 1 - transport.rank(), capacity);
  handle.wait_synchronize();
  return handle;
}

Handle send_both_ways(Transport& transport, ConstByteSpan bytes) {
  const int peer = 1 - transport.rank();
  Handle sent = transport.send(kOperation, peer, bytes);
  Handle received = transport.receive(kOperation, peer, bytes.size());
  sent.wait_synchronize();
  received.wait_synchronize();
  return received;
}

/// One message in the direction of the pattern, and the answer.
Handle call(Transport& transport, Pattern pattern, ConstByteSpan bytes) {
  if (pattern == Pattern::kExchange) return send_both_ways(transport, bytes);
  send(transport, bytes);
  return receive(transport, bytes.size());
}

/// Both ranks make the same message, so the received bytes equal the sent bytes.
std::vector<std::byte> message_of(std::size_t bytes) {
  std::vector<std::byte> message(bytes);
  for (std::size_t i = 0; i < bytes; ++i) message[i] = static_cast<std::byte>(i * 31 + i / 251);
  return message;
}

void send_run(Transport& transport, const Run& run) {
  send(transport, std::as_bytes(std::span(&run, 1)));
}

void serve_run(Transport& transport, const Run& run) {
  const std::vector<std::byte> message = message_of(run.bytes);
  for (std::uint64_t i = 0; i < run.iterations; ++i) {
    if (run.pattern == Pattern::kExchange)
      send_both_ways(transport, message);
    else
      send(transport, receive(transport, run.bytes).received(0));
  }
}

}  // namespace

void serve(Transport& transport) {
  for (;;) {
    Run run;
    {
      const Handle handle = receive(transport, sizeof run);
      std::memcpy(&run, handle.received(0).data(), sizeof run);
    }
    if (run.iterations == 0) return;
    serve_run(transport, run);
  }
}

TransportBenchmarks::TransportBenchmarks(const std::string& name, std::unique_ptr<Fleet> fleet)
    : fleet_(std::move(fleet)) {
  constexpr std::size_t kSmallest = 8, kLargest = std::size_t{16} << 20;
  for (const auto& [pattern, text] :
       {std::pair(Pattern::kPingPong, "ping_pong"), std::pair(Pattern::kExchange, "exchange")})
    for (std::size_t bytes = kSmallest; bytes <= kLargest; bytes *= 128)
      benchmark::RegisterBenchmark(
          fmt::format("{}/{}/bytes:{}", name, text, bytes).c_str(),
          [this, pattern = pattern, bytes](benchmark::State& state) { run(state, pattern, bytes); })
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
}

TransportBenchmarks::~TransportBenchmarks() {
  try {
    if (fleet_->only_rank()) fleet_->run([](Rank& rank) { send_run(rank.transport(), {}); });
  } catch (const std::exception&) {
    // The failed benchmark was reported.
  }
}

void TransportBenchmarks::run(benchmark::State& state, Pattern pattern, std::size_t bytes) {
  try {
    fleet_->run([&](Rank& rank) {
      if (!rank.is_rank0()) return serve(rank.transport());
      time(state, rank.transport(), pattern, bytes);
      if (!fleet_->only_rank()) send_run(rank.transport(), {});
    });
  } catch (const std::exception& error) {
    failed_ = true;
    state.SkipWithError(error.what());
  }
}

/// Checks the first message.
void TransportBenchmarks::time(benchmark::State& state, Transport& transport, Pattern pattern,
                               std::size_t bytes) {
  const std::vector<std::byte> message = message_of(bytes);
  const auto iterations = static_cast<std::uint64_t>(state.max_iterations);
  send_run(transport, {iterations + 1, bytes, pattern});
  if (!std::ranges::equal(message, call(transport, pattern, message).received(1)))
    throw Error(fmt::format("the received message of {} bytes differs", bytes));
  for ([[maybe_unused]] auto iteration : state) call(transport, pattern, message);
  if (pattern == Pattern::kExchange) {
    state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(bytes));
  } else {
    using Counter = benchmark::Counter;
    const auto seconds = Counter::kIsIterationInvariantRate | Counter::kInvert;
    state.counters["latency"] = Counter(2, seconds);  // half of a round trip
  }
}

}  // namespace tersor::bench
