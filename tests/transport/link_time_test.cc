// The emulated link against its formulas, in real time: waiting is real, and no longer than it must
// be. Not under a sanitizer, which is slower than the link.
#include <algorithm>
#include <chrono>
#include <numeric>

#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

constexpr double kRate = 1e9 / 8;  // bytes a second
constexpr int kRanks = 4;
const Link kGigabit{.bits_per_second = 1e9};
const Link kPairs{.bits_per_second = 1e9, .ranks_per_host = 2};  // ranks 0 and 1, 2 and 3
constexpr std::size_t kBytes = 4'000'000;

class LinkInRealTime : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "times are not kept under a sanitizer";
  }
};

/// What all ranks send: made before any time is taken.
const std::vector<std::byte>& payload() {
  static const std::vector<std::byte> bytes(kBytes);
  return bytes;
}

/// The least of some runs, of which there are no more once one took at most `enough`: a machine
/// that does other things makes times longer, never shorter.
template <typename Run>
double best_seconds(double enough, Run&& run) {
  double best = run();
  for (int trial = 1; trial < 10 && best > enough; ++trial) best = std::min(best, run());
  return best;
}

/// Seconds from the first rank's start of `body`, after a barrier, to the last one's end.
double time_of(int ranks, const Link& link, const Body& body) {
  std::vector<Clock::time_point> starts(static_cast<std::size_t>(ranks)), ends(starts);
  run_ranks(ranks, link, [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    transport.barrier(operation_of(transport)).wait_synchronize();
    starts[rank] = Clock::now();
    body(transport);
    ends[rank] = Clock::now();
  });
  const auto start = *std::min_element(starts.begin(), starts.end());
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - start).count();
}

// On quiet cores it is within 2 %. Where a machine has other work, copies and wakes come late: what
// is held to here still tells a flow that shares the link from one that does not.
constexpr double kSlack = 1.10;
double longest(double formula) { return formula * kSlack + 1e-3; }

void expect_time(double seconds, double formula) {
  EXPECT_GE(seconds, formula);
  EXPECT_LE(seconds, longest(formula));
}

/// Each of `senders` sends the payload to each of `receivers`, but not to itself.
struct Flows {
  std::vector<int> senders;
  std::vector<int> receivers;
};

void expect_flows(const Link& link, const Flows& flows, double formula) {
  const double seconds = best_seconds(longest(formula), [&] {
    return time_of(kRanks, link, [&](Transport& transport) {
      std::vector<Handle> handles;
      const auto among = [&](const std::vector<int>& ranks, int rank) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      };
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == transport.rank()) continue;
        if (among(flows.senders, transport.rank()) && among(flows.receivers, peer))
          handles.push_back(transport.send({.name = "flow", .tag = 50}, peer, payload()));
        if (among(flows.senders, peer) && among(flows.receivers, transport.rank()))
          handles.push_back(transport.receive({.name = "flow", .tag = 50}, peer, kBytes));
      }
      for (Handle& handle : handles) handle.wait_synchronize();
    });
  });
  expect_time(seconds, formula);
}

TEST_F(LinkInRealTime, OneMessage) { expect_flows(kGigabit, {{0}, {1}}, kBytes / kRate); }

TEST_F(LinkInRealTime, LatencyAndOverhead) {
  const Link link{.bits_per_second = 1e9, .latency = 20ms, .overhead = 1.5};
  expect_flows(link, {{0}, {1}}, 1.5 * kBytes / kRate + 20e-3);
}

TEST_F(LinkInRealTime, OneToAllOthers) {
  expect_flows(kGigabit, {{0}, {1, 2, 3}}, 3 * kBytes / kRate);
}

TEST_F(LinkInRealTime, AllOthersToOne) {
  expect_flows(kGigabit, {{1, 2, 3}, {0}}, 3 * kBytes / kRate);
}

TEST_F(LinkInRealTime, AllToAll) {
  expect_flows(kGigabit, {{0, 1, 2, 3}, {0, 1, 2, 3}}, 3 * kBytes / kRate);
}

TEST_F(LinkInRealTime, RanksOfOneHostShareItsLink) {
  expect_flows(kPairs, {{0, 1}, {2}}, 2 * kBytes / kRate);
  expect_flows(kPairs, {{0}, {2, 3}}, 2 * kBytes / kRate);
  expect_flows(kPairs, {{0, 2}, {0, 2}}, kBytes / kRate);
}

TEST_F(LinkInRealTime, WhatStaysOnAHostNeedsNoLink) {
  const double formula = kBytes / kRate;
  const double seconds = best_seconds(0.5 * formula, [&] {
    return time_of(kRanks, kPairs, [&](Transport& transport) {
      const int neighbour = transport.rank() ^ 1;
      Handle sent = transport.send({.name = "flow", .tag = 50}, neighbour, payload());
      transport.receive({.name = "flow", .tag = 50}, neighbour, kBytes).wait_synchronize();
      sent.wait_synchronize();
    });
  });
  EXPECT_LE(seconds, 0.5 * formula);
}

// Rank 0 goes to sleep with its neighbour's message not yet sent and the other one on its way:
// whoever brings the neighbour's must tell it when to look again. Nobody else looks.
TEST_F(LinkInRealTime, AMessageFromTheHostDoesNotLetOneFromTheLinkWait) {
  const double formula = kBytes / kRate;
  const double seconds = best_seconds(longest(formula), [&] {
    double of_rank_0 = 0;
    run_ranks(3, kPairs, [&](Transport& transport) {
      const Clock::time_point start = Clock::now();
      if (transport.rank() == 1) std::this_thread::sleep_for(10ms);
      std::vector<ConstByteSpan> sends(3);
      if (transport.rank() == 1) sends[0] = ConstByteSpan(payload()).first(1);
      if (transport.rank() == 2) sends[0] = payload();
      const std::vector<std::size_t> capacities(3, kBytes);
      Handle handle = transport.all_to_all({.name = "to 0", .tag = 50}, sends, capacities);
      if (transport.rank() != 0) return std::this_thread::sleep_for(100ms);
      handle.wait_synchronize();
      of_rank_0 = std::chrono::duration<double>(Clock::now() - start).count();
    });
    return of_rank_0;
  });
  EXPECT_LE(seconds, longest(formula));
}

// The baseline of every ratio: what f32 costs without compression must be the wire's limit.
TEST_F(LinkInRealTime, ASumTakesTheWiresLimit) {
  constexpr std::size_t kCount = 16 << 20;
  const double limit = 2 * 0.75 * kCount * sizeof(float) / kRate;
  const double seconds = best_seconds(kSlack * limit, [&] {
    return time_of(4, {.bits_per_second = 1e9, .latency = 50us}, [&](Transport& transport) {
      static std::vector<std::vector<float>> values(4, std::vector<float>(kCount));
      auto& own = values[static_cast<std::size_t>(transport.rank())];
      transport.sum({.name = "allreduce", .tag = 50}, cut(own, even_counts(kCount, 4)))
          .wait_synchronize();
    });
  });
  EXPECT_GE(seconds, limit);
  EXPECT_LE(seconds, kSlack * limit);
}

// Two channels of one rank share its link.
TEST_F(LinkInRealTime, ChannelsShareTheLink) {
  const double formula = 2 * kBytes / kRate;
  const double seconds = best_seconds(longest(formula), [&] {
    return time_of(2, kGigabit, [&](Transport& transport) {
      const auto other = transport.channel();
      Handle one = transport.all_gather({.name = "one", .tag = 50}, payload(), kBytes);
      Handle two = other->all_gather({.name = "two", .tag = 50}, payload(), kBytes);
      one.wait_synchronize();
      two.wait_synchronize();
    });
  });
  expect_time(seconds, formula);
}

}  // namespace
}  // namespace tersor::test
