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

/// A transport under test: how to run a body on each of so many ranks. Where ranks are processes, a
/// test runs in each of them, and a body on one rank in each.
struct Fabric {
  std::string name;
  std::function<void(int ranks, const Body& body)> run;
  std::size_t head_bytes = 32;  ///< that stand before every message
  int most_ranks = 64;
  /// Of processes: where a body waits until all ranks are there, and how all processes learn what
  /// each rank wrote to its entry, after the run. Null where ranks are threads.
  std::function<void()> meet = {};
  std::function<void(std::vector<std::string>& of_ranks)> share = {};

  friend std::ostream& operator<<(std::ostream& out, const Fabric& fabric) {
    return out << fabric.name;
  }
};

inline Fabric in_process_fabric(const std::string& name, const std::string& link) {
  return {name, [link](int ranks, const Body& body) { run_ranks(ranks, parse_link(link), body); }};
}

/// Every transport that all the suites run on: defined once for each test program.
std::vector<Fabric> fabrics();

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

inline bool equal_bytes(ConstByteSpan one, ConstByteSpan other) {
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
    EXPECT_TRUE(equal_bytes(handle.received(rank), pattern(bytes, rank, to)))
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

/// A suite that runs on every fabric.
class OnFabric : public ::testing::TestWithParam<Fabric> {
 protected:
  void run(int ranks, const Body& body) const {
    if (ranks > GetParam().most_ranks) GTEST_SKIP() << "needs " << ranks << " ranks";
    GetParam().run(ranks, body);
  }
  /// The body on 1, 2, 3, 4 and 8 ranks, as far as there are so many.
  void on_all_ranks(const Body& body) const {
    for (const int ranks : {1, 2, 3, 4, 8}) {
      if (ranks > GetParam().most_ranks) continue;
      SCOPED_TRACE(::testing::Message() << ranks << " ranks");
      GetParam().run(ranks, body);
    }
  }
};

/// How the ranks of a faulty run ended: the text of each rank's error, empty where it had none. A
/// rank that throws anything else poisons its transport. Transports live until all ranks have
/// ended, so that no rank is named for leaving.
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
      transport.poison(error.what());
    }
    --running;
    if (fabric.meet != nullptr) return fabric.meet();
    while (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  if (fabric.share != nullptr) fabric.share(errors);
  return errors;
}

}  // namespace tersor::test
