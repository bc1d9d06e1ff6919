// Latency and throughput of transports between two ranks.
#pragma once

#include <benchmark/benchmark.h>
#include <tersor/transport.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tersor::bench {

/// Sends rank 0's messages back until rank 0 ends.
void serve(Transport& transport);

/// Rank 0 of two ranks. Rank 1 runs `serve` on a thread of this process or in another process.
class TransportBenchmarks {
 public:
  ~TransportBenchmarks();

  /// Registers the benchmarks of a transport. `make` is called before the first run and returns
  /// both ranks in this process.
  void register_local(const std::string& name,
                      std::function<std::vector<std::unique_ptr<Transport>>()> make);
  /// Registers the benchmarks of a transport whose rank 1 is another process.
  void register_remote(const std::string& name, Transport& transport);
  /// True if a benchmark failed.
  bool failed() const { return failed_; }

 private:
  class Pair;

  void register_pair(const std::string& name, std::shared_ptr<Pair> pair);

  std::vector<std::shared_ptr<Pair>> pairs_;
  bool failed_ = false;
};

/// Two ranks of this process over TCP on the loopback. Only in builds with TCP.
std::vector<std::unique_ptr<Transport>> make_tcp_pair();

}  // namespace tersor::bench
