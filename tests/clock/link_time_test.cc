// The emulated link compared with its formulas: waits take the required time, and no longer.
#include <algorithm>
#include <chrono>

#include "tests/clock/clock.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr double kRate = 1e9 / 8;  // bytes per second
constexpr int kRanks = 4;
const Link kGigabit{.bits_per_second = 1e9};
const Link kPairs{.bits_per_second = 1e9, .ranks_per_host = 2};  // ranks 0 and 1, 2 and 3
constexpr std::size_t kBytes = 4'000'000;

/// The payload of every message.
const std::vector<std::byte>& payload() {
  static const std::vector<std::byte> bytes(kBytes);
  return bytes;
}

/// Seconds from the first rank's start of `body`, after a barrier, to the last rank's end.
double time_of(int ranks, const Link& link, const Body& body) {
  std::vector<Clock::time_point> starts(static_cast<std::size_t>(ranks)), ends(starts);
  run_on_clock(ranks, link, [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    transport.barrier(operation_of(transport)).wait_synchronize();
    starts[rank] = Clock::now();
    body(transport);
    ends[rank] = Clock::now();
  });
  const auto start = *std::min_element(starts.begin(), starts.end());
  return std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - start).count();
}

// Headers and segments of interleaved flows add a little time. The clock ticks in nanoseconds.
constexpr double kSlack = 1.005;

void expect_time(double seconds, double formula) {
  EXPECT_GE(seconds, formula);
  EXPECT_LE(seconds, formula * kSlack);
}

/// Each sender sends the payload to each other rank in `receivers`.
struct Flows {
  std::vector<int> senders;
  std::vector<int> receivers;
};

void expect_flows(const Link& link, const Flows& flows, double formula) {
  const double seconds = time_of(kRanks, link, [&](Transport& transport) {
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
  expect_time(seconds, formula);
}

TEST(LinkTime, SingleMessage) { expect_flows(kGigabit, {{0}, {1}}, kBytes / kRate); }

TEST(LinkTime, LatencyAndOverhead) {
  const Link link{.bits_per_second = 1e9, .latency = 20ms, .overhead = 1.5};
  expect_flows(link, {{0}, {1}}, 1.5 * kBytes / kRate + 20e-3);
}

TEST(LinkTime, FanOut) { expect_flows(kGigabit, {{0}, {1, 2, 3}}, 3 * kBytes / kRate); }

TEST(LinkTime, FanIn) { expect_flows(kGigabit, {{1, 2, 3}, {0}}, 3 * kBytes / kRate); }

TEST(LinkTime, AllToAll) {
  expect_flows(kGigabit, {{0, 1, 2, 3}, {0, 1, 2, 3}}, 3 * kBytes / kRate);
}

TEST(LinkTime, RanksOnOneHostShareItsLink) {
  expect_flows(kPairs, {{0, 1}, {2}}, 2 * kBytes / kRate);
  expect_flows(kPairs, {{0}, {2, 3}}, 2 * kBytes / kRate);
  expect_flows(kPairs, {{0, 2}, {0, 2}}, kBytes / kRate);
}

TEST(LinkTime, IntraHostMessagesBypassLink) {
  const double seconds = time_of(kRanks, kPairs, [&](Transport& transport) {
    const int neighbour = transport.rank() ^ 1;
    Handle sent = transport.send({.name = "flow", .tag = 50}, neighbour, payload());
    transport.receive({.name = "flow", .tag = 50}, neighbour, kBytes).wait_synchronize();
    sent.wait_synchronize();
  });
  EXPECT_LT(seconds, 1e-6);
}

// Rank 0 sleeps before its neighbor sends, while the third rank's message is on the link. The
// neighbor's delivery must also schedule the next wake-up, because no other rank polls.
TEST(LinkTime, IntraHostMessageDoesNotDelayLinkMessage) {
  double seconds = 0;
  run_on_clock(3, kPairs, [&](Transport& transport) {
    const Clock::time_point start = Clock::now();
    if (transport.rank() == 1) pass(10ms);
    std::vector<ConstByteSpan> sends(3);
    if (transport.rank() == 1) sends[0] = ConstByteSpan(payload()).first(1);
    if (transport.rank() == 2) sends[0] = payload();
    const std::vector<std::size_t> capacities(3, kBytes);
    Handle handle = transport.all_to_all({.name = "to 0", .tag = 50}, sends, capacities);
    if (transport.rank() != 0) return pass(100ms);
    handle.wait_synchronize();
    seconds = seconds_since(start);
  });
  expect_time(seconds, kBytes / kRate);
}

// The baseline of every ratio: an uncompressed f32 sum must reach the wire's limit.
TEST(LinkTime, SumReachesBandwidthLimit) {
  constexpr std::size_t kCount = 16 << 20;
  const double limit = 2 * 0.75 * kCount * sizeof(float) / kRate;
  const Link link{.bits_per_second = 1e9, .latency = 50us};
  const double seconds = time_of(4, link, [&](Transport& transport) {
    static std::vector<std::vector<float>> values(4, std::vector<float>(kCount));
    auto& own = values[static_cast<std::size_t>(transport.rank())];
    transport.sum({.name = "allreduce", .tag = 50}, cut(own, even_counts(kCount, 4)))
        .wait_synchronize();
  });
  expect_time(seconds, limit);
}

// Two channels of a rank share its link.
TEST(LinkTime, ChannelsShareTheLink) {
  const double seconds = time_of(2, kGigabit, [&](Transport& transport) {
    const auto other = transport.channel();
    Handle one = transport.all_gather({.name = "one", .tag = 50}, payload(), kBytes);
    Handle two = other->all_gather({.name = "two", .tag = 50}, payload(), kBytes);
    one.wait_synchronize();
    two.wait_synchronize();
  });
  expect_time(seconds, 2 * kBytes / kRate);
}

}  // namespace
}  // namespace tersor::test
