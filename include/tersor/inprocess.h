// Ranks as threads of one process over an emulated link, for tests, benchmarks and experiments.
#pragma once

#include <tersor/transport.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// The emulated full-duplex link of each host. Messages are sent in segments of 16 KiB, concurrent
/// flows alternate, and delays are real. Ranks of one host share a link; messages between these
/// ranks arrive at once. docs/explain/algorithms.md lists the formulas.
struct Link {
  /// Rate per direction; 0: no emulation, messages arrive at once.
  double bits_per_second = 0;
  std::chrono::nanoseconds latency{0};  ///< one way
  double overhead = 1.0;                ///< wire bytes per sent byte; 1.046 for TCP/IP on Ethernet
  /// Ranks r with equal r / ranks_per_host share a host.
  int ranks_per_host = 1;

  /// True if the link delays messages.
  bool emulated() const { return bits_per_second > 0; }
  /// Returns the text that `parse_link` reads, e.g. "1Gbit,50us" or "none,per_host=2".
  std::string text() const;
};

/// Parses RATE|none[,LATENCY][,overhead=FACTOR][,per_host=RANKS], e.g. "1Gbit,50us", "100Mbit",
/// "25Gbit,10us,overhead=1.046", "1Gbit,50us,per_host=2", "none". Units: bit, Kbit, Mbit, Gbit
/// (powers of 1000); ns, us, ms, s. Throws InvalidArgumentError if the text is malformed; the
/// message shows the grammar.
Link parse_link(std::string_view text);

/// Returns one transport per rank, in the order of the ranks. Only the thread of a rank may use the
/// rank's transport. If a transport is destroyed while its peers wait, the peers throw an error
/// that names the rank. Throws InvalidArgumentError for fewer than 1 rank, in total or per host.
std::vector<std::unique_ptr<Transport>> make_inprocess_transports(int ranks, const Link& link = {});

/// Runs `body` once per rank, each on a separate thread, and returns after all threads. If a rank
/// throws, the transports of the other ranks are aborted, and `run_ranks` rethrows the exception.
void run_ranks(int ranks, const Link& link, const std::function<void(Transport&)>& body);
/// Runs `body` on existing transports of any kind whose ranks are all in this process.
void run_ranks(std::vector<std::unique_ptr<Transport>> transports,
               const std::function<void(Transport&)>& body);

}  // namespace tersor
