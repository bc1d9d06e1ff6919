// Runs the ranks of a test, on whichever transport the suite is instantiated with, and collects how
// each of them ended.
#pragma once

#include <gtest/gtest.h>
#include <tersor/inprocess.h>
#include <tersor/transport.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace tersor::test {

using Body = std::function<void(Transport&)>;

/// A transport under test: how to run a body on each of so many ranks.
struct Fabric {
  std::string name;
  std::function<void(int ranks, const Body& body)> run;

  friend std::ostream& operator<<(std::ostream& out, const Fabric& fabric) {
    return out << fabric.name;
  }
};

inline Fabric in_process_fabric(const std::string& name, const std::string& link) {
  return {name, [link](int ranks, const Body& body) { run_ranks(ranks, parse_link(link), body); }};
}

/// Every transport that all the suites run on: one line each.
inline std::vector<Fabric> fabrics() {
  return {in_process_fabric("InProcess", "none"),
          in_process_fabric("EmulatedLink", "10Gbit,20us,overhead=1.046"),
          in_process_fabric("SharedHosts", "10Gbit,20us,per_host=3")};
}

inline std::string fabric_name(const ::testing::TestParamInfo<Fabric>& info) {
  return info.param.name;
}

/// Bytes that say where they come from and where they go.
inline std::vector<std::byte> pattern(std::size_t bytes, int from, int to) {
  std::vector<std::byte> values(bytes);
  std::uint32_t state = static_cast<std::uint32_t>(from * 7919 + to * 104729 + 1);
  for (std::byte& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<std::byte>(state >> 24);
  }
  return values;
}

inline bool same_bytes(ConstByteSpan one, ConstByteSpan other) {
  return one.size() == other.size() && std::equal(one.begin(), one.end(), other.begin());
}

/// Ranks that are not the transport's own.
inline std::vector<int> peers_of(const Transport& transport) {
  std::vector<int> peers;
  for (int rank = 0; rank < transport.ranks(); ++rank)
    if (rank != transport.rank()) peers.push_back(rank);
  return peers;
}

/// Expects `pattern(bytes, rank, to)` from every other rank.
inline void expect_patterns(const Handle& handle, const Transport& transport, std::size_t bytes,
                            int to) {
  for (const int rank : peers_of(transport))
    EXPECT_TRUE(same_bytes(handle.received(rank), pattern(bytes, rank, to)))
        << bytes << " bytes from " << rank << " to " << transport.rank();
}

inline Operation operation_of(Transport& transport, std::string_view name = "test") {
  return {.name = name, .signature = 42, .tag = transport.reserve_tags(1)};
}

/// Values of one dtype, cut into one part a rank.
inline std::vector<ValueSpan> cut(ValueSpan values, const std::vector<std::size_t>& counts) {
  std::vector<ValueSpan> parts;
  std::size_t first = 0;
  for (const std::size_t count : counts) {
    parts.push_back(values.subspan(first, count));
    first += count;
  }
  return parts;
}

/// As equal as it gets, the last one longest.
inline std::vector<std::size_t> even_counts(std::size_t count, int ranks) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks),
                                  count / static_cast<std::size_t>(ranks));
  counts.back() += count % static_cast<std::size_t>(ranks);
  return counts;
}

/// How the ranks of a faulty run ended: the text of each rank's TransportError, empty where it had
/// none. Transports live until all ranks have ended, so that no rank is named for leaving.
inline std::vector<std::string> errors_of(const Fabric& fabric, int ranks, const Body& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::atomic<int> running{ranks};
  fabric.run(ranks, [&](Transport& transport) {
    try {
      body(transport);
    } catch (const TransportError& error) {
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
    }
    --running;
    while (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  return errors;
}

}  // namespace tersor::test
