// Ranks as threads of one process, over an emulated link: for tests, benchmarks and trying things.
#pragma once

#include <tersor/transport.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// The link that each host has, full duplex: messages travel in segments of 16 KiB, several flows
/// take turns, and waiting is real. Ranks of one host share its link, and what they send each other
/// arrives at once. docs/benchmarks.md has the formulas.
struct Link {
  double bits_per_second = 0;  ///< each way; 0: no emulation, messages arrive at once
  std::chrono::nanoseconds latency{0};
  double overhead = 1.0;   ///< bytes on the wire for each byte sent; 1.046 is TCP/IP on Ethernet
  int ranks_per_host = 1;  ///< ranks r of equal r / ranks_per_host share a host

  bool emulated() const { return bits_per_second > 0; }
  /// As `parse_link` reads it: "1Gbit,50us", "none,per_host=2".
  std::string text() const;
};

/// Reads RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS], e.g. "1Gbit,50us", "100Mbit",
/// "25Gbit,10us,overhead=1.046", "1Gbit,50us,per_host=2", "none". Units: bit, Kbit, Mbit, Gbit
/// (1000); ns, us, ms, s.
/// Throws InvalidArgument that shows the grammar.
Link parse_link(std::string_view text);

/// A group of ranks in this process. Outlives the transports that it hands out.
class InProcessWorld {
 public:
  /// Throws InvalidArgument for fewer than 1 rank, in all or on a host.
  explicit InProcessWorld(int ranks, Link link = {});
  ~InProcessWorld();

  int ranks() const;
  /// The transport of one rank, once for each rank; to be used by that rank's thread. A transport
  /// that goes away while its peers still wait for it ends their waiting with an error naming it.
  std::unique_ptr<Transport> transport(int rank);

  struct State;

 private:
  std::shared_ptr<State> state_;
};

/// Runs `body` once for each rank, each on a thread of its own, and returns when all are done.
/// Where a rank throws, the others are told, and its exception is thrown again here.
void run_ranks(int ranks, const Link& link, const std::function<void(Transport&)>& body);
/// As above, on transports of any kind whose ranks are all in this process.
void run_ranks(std::vector<std::unique_ptr<Transport>> transports,
               const std::function<void(Transport&)>& body);

}  // namespace tersor
