// Runs the ranks of a test on the fabric of the suite and collects each rank's error.
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

#include "tests/support/errors.h"

namespace tersor::test {

using Body = std::function<void(Transport&)>;

/// A transport under test: runs a body on a given number of ranks. If ranks are processes, each
/// process runs the whole test and the body of a single rank.
struct Fabric {
  std::string name;
  std::function<void(int ranks, const Body& body)> run;
  std::size_t head_bytes = 32;  ///< size of a message header
  int most_ranks = 64;
  Memory memory = Memory::kHost;  ///< of the messages in the conformance suites
  bool in_order = false;          ///< see Operation
  bool own_sums = true;           ///< True if native sums are Tersor's, with the bits of the host
  /// Only for processes: `meet` waits until all ranks arrive. `share` distributes each rank's entry
  /// to all processes after the run. Null if ranks are threads.
  std::function<void()> meet = {};
  std::function<void(std::vector<std::string>& of_ranks)> share = {};

  friend std::ostream& operator<<(std::ostream& out, const Fabric& fabric) {
    return out << fabric.name;
  }
};

inline Fabric in_process_fabric(const std::string& name, const std::string& link) {
  return {name, [link](int ranks, const Body& body) { run_ranks(ranks, parse_link(link), body); }};
}

/// The fabrics for all suites, defined once per test program.
std::vector<Fabric> fabrics();

inline std::string fabric_name(const ::testing::TestParamInfo<Fabric>& info) {
  return info.param.name;
}

/// Bytes unique to a sender and a receiver.
inline std::vector<std::byte> pattern(std::size_t bytes, int from, int to) {
  std::vector<std::byte> values(bytes);
  std::uint32_t state = static_cast<std::uint32_t>(from * 7919 + to * 104729 + 1);
  for (std::byte& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<std::byte>(state >> 24);
  }
  return values;
}

inline bool equal_bytes(ConstByteSpan one, ConstByteSpan other) {
  return one.size() == other.size() && std::equal(one.begin(), one.end(), other.begin());
}

/// All ranks except the transport's own.
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
    EXPECT_TRUE(equal_bytes(handle.received(rank), pattern(bytes, rank, to)))
        << bytes << " bytes from " << rank << " to " << transport.rank();
}

inline Operation operation_of(Transport& transport, std::string_view name = "test") {
  return {.name = name, .signature = 42, .tag = transport.reserve_tags(1)};
}

/// Splits values of one dtype into a part per rank.
inline std::vector<ValueSpan> cut(ValueSpan values, const std::vector<std::size_t>& counts) {
  std::vector<ValueSpan> parts;
  std::size_t first = 0;
  for (const std::size_t count : counts) {
    parts.push_back(values.subspan(first, count));
    first += count;
  }
  return parts;
}

/// Nearly equal counts; the last is the largest.
inline std::vector<std::size_t> even_counts(std::size_t count, int ranks) {
  std::vector<std::size_t> counts(static_cast<std::size_t>(ranks),
                                  count / static_cast<std::size_t>(ranks));
  counts.back() += count % static_cast<std::size_t>(ranks);
  return counts;
}

/// A suite with a run per fabric.
class OnFabric : public ::testing::TestWithParam<Fabric> {
 protected:
  void run(int ranks, const Body& body) const {
    if (ranks > GetParam().most_ranks) GTEST_SKIP() << "needs " << ranks << " ranks";
    GetParam().run(ranks, body);
  }
  /// Runs the body on 1, 2, 3, 4 and 8 ranks, up to the fabric's maximum.
  void on_all_ranks(const Body& body) const {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      if (ranks > GetParam().most_ranks) continue;
      SCOPED_TRACE(::testing::Message() << ranks << " ranks");
      GetParam().run(ranks, body);
    }
  }
};

/// Runs ranks with faults. Returns the text of each rank's error, or empty. Any other exception
/// poisons the rank's transport. Transports live until all ranks have ended, so an early exit is
/// not reported as a fault.
inline std::vector<std::string> errors_of(const Fabric& fabric, int ranks, const Body& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  std::atomic<int> running{ranks};
  fabric.run(ranks, [&](Transport& transport) {
    try {
      body(transport);
    } catch (const TransportError& error) {
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
    } catch (const std::exception& error) {
      errors[static_cast<std::size_t>(transport.rank())] = error.what();
      transport.abort(error.what());
    }
    --running;
    if (fabric.meet != nullptr) return fabric.meet();
    while (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  if (fabric.share != nullptr) fabric.share(errors);
  return errors;
}

}  // namespace tersor::test
