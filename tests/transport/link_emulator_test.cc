// The emulated link compared with its formulas, in virtual time: bitwise equal.
#include "comm/transport/inproc/link_emulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <utility>
#include <vector>

namespace tersor::inproc {
namespace {

using namespace std::chrono_literals;

constexpr double kRate = 1e9 / 8;  // bytes per second
constexpr Seconds kSegment = LinkEmulator::kSegmentBytes / kRate;

/// Packets posted at given times. `finish` returns the arrival times.
class Simulation {
 public:
  Simulation(int ranks, const Link& link) : emulator_(ranks, link) {}

  Packet& post(int source, int destination, std::size_t bytes, Seconds when = 0) {
    Packet packet;
    packet.source = source;
    packet.destination = destination;
    packet.bytes = bytes;
    packets_.push_back(packet);
    advance(when);
    emulator_.post(packets_.back(), when);
    return packets_.back();
  }
  void advance(Seconds when) {
    emulator_.advance(when, [&](Packet& packet) { arrived_.push_back(&packet); });
  }
  void finish() { advance(1e9); }
  const std::vector<Packet*>& arrived() const { return arrived_; }
  const std::deque<Packet>& packets() const { return packets_; }
  LinkEmulator& emulator() { return emulator_; }

 private:
  LinkEmulator emulator_;
  std::deque<Packet> packets_;
  std::vector<Packet*> arrived_;
};

const Link kGigabit{.bits_per_second = 1e9};

TEST(LinkEmulator, MessageTimeIsBytesOverRatePlusLatency) {
  for (const std::size_t bytes : {1u, 100u, 16'384u, 16'385u, 10'000'000u}) {
    Simulation link(2, {.bits_per_second = 1e9, .latency = 50us, .overhead = 1.046});
    const Packet& packet = link.post(0, 1, bytes);
    link.finish();
    EXPECT_NEAR(packet.arrival, 1.046 * static_cast<double>(bytes) / kRate + 50e-6, 1e-12);
  }
}

TEST(LinkEmulator, FlowsOfOneRankTakeTurns) {
  Simulation link(4, kGigabit);
  constexpr std::size_t kBytes = 100 * LinkEmulator::kSegmentBytes;
  for (const int peer : {1, 2, 3}) link.post(0, peer, kBytes);
  link.finish();
  for (const Packet& packet : link.packets()) {
    EXPECT_GE(packet.arrival, 298 * kSegment - 1e-12);
    EXPECT_LE(packet.arrival, 300 * kSegment + 1e-12);
  }
  EXPECT_NEAR(link.arrived().back()->arrival, 300 * kSegment, 1e-12);
}

TEST(LinkEmulator, MessagesToOnePeerKeepTheirOrder) {
  Simulation link(2, kGigabit);
  const Packet& first = link.post(0, 1, 1'000'000);
  const Packet& second = link.post(0, 1, 10);
  link.finish();
  EXPECT_NEAR(first.arrival, 1e6 / kRate, 1e-12);
  EXPECT_NEAR(second.arrival, (1e6 + 10) / kRate, 1e-12);
}

TEST(LinkEmulator, ShortMessageWaitsForAtMostOneSegment) {
  Simulation link(3, kGigabit);
  link.post(0, 1, 100'000'000);
  const Packet& brief = link.post(0, 2, 1000, 0.1);
  link.finish();
  EXPECT_LE(brief.arrival, 0.1 + kSegment + 1000 / kRate + 1e-12);
}

TEST(LinkEmulator, IdleLinkStartsAtOnce) {
  Simulation link(2, kGigabit);
  link.post(0, 1, 1000);
  const Packet& late = link.post(0, 1, 1000, 5.0);
  link.finish();
  EXPECT_NEAR(late.arrival, 5.0 + 1000 / kRate, 1e-12);
}

struct Posting {
  int source, destination;
  std::size_t bytes;
  Seconds when;
};

std::vector<Posting> random_postings(unsigned seed, int ranks) {
  std::mt19937 random(seed);
  std::vector<Posting> postings;
  Seconds when = 0;
  for (int index = 0; index < 120; ++index) {
    const int source = static_cast<int>(random() % static_cast<unsigned>(ranks));
    const int step = 1 + static_cast<int>(random() % static_cast<unsigned>(ranks - 1));
    const std::size_t bytes = 1 + random() % (random() % 3 == 0 ? 400'000 : 3000);
    postings.push_back({source, (source + step) % ranks, bytes, when});
    when += static_cast<double>(random() % 1000) * 1e-6;
  }
  return postings;
}

// The frequency of polls must not matter, although the link advances only during polls.
TEST(LinkEmulator, PollingFrequencyDoesNotChangeArrivals) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Simulation seldom(5, {.bits_per_second = 1e9, .latency = 30us});
    Simulation often(5, {.bits_per_second = 1e9, .latency = 30us});
    Seconds looked = 0;
    for (const Posting& posting : random_postings(seed, 5)) {
      for (; looked < posting.when; looked += 7e-6) often.advance(looked);
      often.post(posting.source, posting.destination, posting.bytes, posting.when);
      seldom.post(posting.source, posting.destination, posting.bytes, posting.when);
    }
    seldom.finish();
    often.finish();
    ASSERT_EQ(seldom.arrived().size(), 120u);
    for (std::size_t index = 0; index < 120; ++index)
      EXPECT_DOUBLE_EQ(seldom.packets()[index].arrival, often.packets()[index].arrival) << seed;
  }
}

// A rank sleeping until earliest_arrival never oversleeps and wakes close to the arrival.
TEST(LinkEmulator, EarliestArrivalIsALowerBound) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Simulation link(4, {.bits_per_second = 1e9, .latency = 30us});
    std::vector<std::pair<const Packet*, Seconds>> promises;
    for (const Posting& posting : random_postings(seed, 4)) {
      link.post(posting.source, posting.destination, posting.bytes, posting.when);
      for (const Packet& packet : link.packets())
        promises.emplace_back(&packet, link.emulator().earliest_arrival(packet));
    }
    link.finish();
    for (const auto& [packet, earliest] : promises)
      EXPECT_LE(earliest, packet->arrival + 1e-12) << seed;
  }
}

// A rank waiting for one of several flows must not wake for each segment.
TEST(LinkEmulator, EarliestArrivalIncludesOtherFlows) {
  Simulation link(4, kGigabit);
  for (const int peer : {1, 2, 3}) link.post(0, peer, 100 * LinkEmulator::kSegmentBytes);
  std::vector<Seconds> earliest;
  for (const Packet& packet : link.packets())
    earliest.push_back(link.emulator().earliest_arrival(packet));
  link.finish();
  for (std::size_t index = 0; index < 3; ++index)
    EXPECT_NEAR(earliest[index], link.packets()[index].arrival, 3 * kSegment);
}

TEST(LinkEmulator, EarliestArrivalIsExactForASingleFlow) {
  Simulation link(2, {.bits_per_second = 1e9, .latency = 30us});
  for (int index = 0; index < 10; ++index) link.post(0, 1, 50'000);
  link.advance(1e-3);
  std::vector<Seconds> earliest;
  for (const Packet& packet : link.packets())
    earliest.push_back(link.emulator().earliest_arrival(packet));
  link.finish();
  for (std::size_t index = 0; index < 10; ++index)
    EXPECT_NEAR(earliest[index], link.packets()[index].arrival, 1e-12);
}

}  // namespace
}  // namespace tersor::inproc
