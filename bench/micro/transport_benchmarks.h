// Latency and throughput of a transport between two ranks.
#pragma once

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bench/ranks/fleet.h"

namespace tersor::bench {

/// Sends rank 0's messages back until rank 0 ends.
void serve(Transport& transport);

enum class Pattern : std::uint64_t {
  kPingPong,  ///< a message to rank 1 and back
  kExchange,  ///< a message in both directions at once
};

/// The benchmarks of a fleet of two ranks. In another process, rank 1 runs `serve`.
class TransportBenchmarks {
 public:
  TransportBenchmarks(const std::string& name, std::unique_ptr<Fleet> fleet);
  /// Ends `serve` in the other process.
  ~TransportBenchmarks();

  /// True if a benchmark failed.
  bool failed() const { return failed_; }

 private:
  void run(benchmark::State& state, Pattern pattern, std::size_t bytes);
  static void time(benchmark::State& state, Transport& transport, Pattern pattern,
                   std::size_t bytes);

  std::unique_ptr<Fleet> fleet_;
  bool failed_ = false;
};

}  // namespace tersor::bench
