// Latency and throughput of a transport between two ranks.
#pragma once

#include <benchmark/benchmark.h>
#include <tersor/transport.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tersor::bench {

/// Sends rank 0's messages back until rank 0 ends.
void serve(Transport& transport);

enum class Pattern : std::uint64_t {
  kPingPong,  ///< a message to rank 1 and back
  kExchange,  ///< a message in both directions at once
};

/// The benchmarks of rank 0. Rank 1 runs `serve` on a thread of this process or in another process.
class TransportBenchmarks {
 public:
  using Make = std::function<std::vector<std::unique_ptr<Transport>>()>;

  /// `make` is called before the first run and returns both ranks in this process.
  TransportBenchmarks(const std::string& name, Make make);
  /// Rank 1 is another process.
  TransportBenchmarks(const std::string& name, Transport& first);
  ~TransportBenchmarks();

  /// True if a benchmark failed.
  bool failed() const { return failed_; }

 private:
  void register_all(const std::string& name);
  void run(benchmark::State& state, Pattern pattern, std::size_t bytes);
  void time(benchmark::State& state, Pattern pattern, std::size_t bytes);
  void start();

  Make make_;
  std::vector<std::unique_ptr<Transport>> transports_;
  Transport* first_ = nullptr;  // null before the first run
  std::thread thread_;
  bool failed_ = false;
};

/// Two ranks of this process over TCP on the loopback. Only in builds with TCP.
std::vector<std::unique_ptr<Transport>> make_tcp_pair();

}  // namespace tersor::bench
