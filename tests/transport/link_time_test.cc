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
const Link kGigabit{.bits_per_second = 1e9};
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

/// The least of some runs: a machine that does other things makes times longer, never shorter.
template <typename Run>
double best_seconds(Run&& run) {
  double best = 1e9;
  for (int trial = 0; trial < 5; ++trial) best = std::min(best, run());
  return best;
}

/// Seconds from a barrier until rank 0 .. ranks - 1 have all done `body`.
double time_of(int ranks, const Link& link, const Body& body) {
  std::vector<double> seconds(static_cast<std::size_t>(ranks));
  run_ranks(ranks, link, [&](Transport& transport) {
    transport.barrier(operation_of(transport)).wait_synchronize();
    const auto start = Clock::now();
    body(transport);
    seconds[static_cast<std::size_t>(transport.rank())] =
        std::chrono::duration<double>(Clock::now() - start).count();
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

void expect_time(double seconds, double formula) {
  EXPECT_GE(seconds, formula * 0.98 - 1e-3);
  EXPECT_LE(seconds, formula * 1.02 + 1e-3);
  ::testing::Test::RecordProperty("seconds", std::to_string(seconds));
}

/// Each of `senders` sends to each of `receivers`, but not to itself.
double time_of_flows(const Link& link, std::vector<int> senders, std::vector<int> receivers) {
  return best_seconds([&] {
    return time_of(4, link, [&](Transport& transport) {
      std::vector<Handle> handles;
      const auto among = [&](const std::vector<int>& ranks, int rank) {
        return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
      };
      for (int peer = 0; peer < 4; ++peer) {
        if (peer == transport.rank()) continue;
        if (among(senders, transport.rank()) && among(receivers, peer))
          handles.push_back(transport.send({.name = "flow", .tag = 50}, peer, payload()));
        if (among(senders, peer) && among(receivers, transport.rank()))
          handles.push_back(transport.receive({.name = "flow", .tag = 50}, peer, kBytes));
      }
      for (Handle& handle : handles) handle.wait_synchronize();
    });
  });
}

TEST_F(LinkInRealTime, OneMessage) {
  expect_time(time_of_flows(kGigabit, {0}, {1}), kBytes / kRate);
}

TEST_F(LinkInRealTime, LatencyAndOverhead) {
  const Link link{.bits_per_second = 1e9, .latency = 20ms, .overhead = 1.5};
  expect_time(time_of_flows(link, {0}, {1}), 1.5 * kBytes / kRate + 20e-3);
}

TEST_F(LinkInRealTime, OneToAllOthers) {
  expect_time(time_of_flows(kGigabit, {0}, {1, 2, 3}), 3 * kBytes / kRate);
}

TEST_F(LinkInRealTime, AllOthersToOne) {
  expect_time(time_of_flows(kGigabit, {1, 2, 3}, {0}), 3 * kBytes / kRate);
}

TEST_F(LinkInRealTime, AllToAll) {
  expect_time(time_of_flows(kGigabit, {0, 1, 2, 3}, {0, 1, 2, 3}), 3 * kBytes / kRate);
}

// The baseline of every ratio: what f32 costs without compression must be the wire's limit.
TEST_F(LinkInRealTime, ASumTakesTheWiresLimit) {
  constexpr std::size_t kCount = 16 << 20;
  const double limit = 2 * 0.75 * kCount * sizeof(float) / kRate;
  const double seconds = best_seconds([&] {
    return time_of(4, {.bits_per_second = 1e9, .latency = 50us}, [&](Transport& transport) {
      static std::vector<std::vector<float>> values(4, std::vector<float>(kCount));
      auto& own = values[static_cast<std::size_t>(transport.rank())];
      transport.sum({.name = "allreduce", .tag = 50}, cut(own, even_counts(kCount, 4)))
          .wait_synchronize();
    });
  });
  EXPECT_GE(seconds, limit);
  EXPECT_LE(seconds, 1.03 * limit);
}

// Two channels of one rank share its link.
TEST_F(LinkInRealTime, ChannelsShareTheLink) {
  const double seconds = best_seconds([&] {
    return time_of(2, kGigabit, [&](Transport& transport) {
      const auto other = transport.channel();
      Handle one = transport.all_gather({.name = "one", .tag = 50}, payload(), kBytes);
      Handle two = other->all_gather({.name = "two", .tag = 50}, payload(), kBytes);
      one.wait_synchronize();
      two.wait_synchronize();
    });
  });
  expect_time(seconds, 2 * kBytes / kRate);
}

}  // namespace
}  // namespace tersor::test
