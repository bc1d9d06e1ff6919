// Captures of emulated streams: captured work, order of replays, and broken captures.

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"
#include "tests/emulated/ranks.h"
#include "tests/emulated/streams.h"

#include <gtest/gtest.h>
#include <tersor/buffer.h>
#include <tersor/error.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

namespace tersor::emulator {
namespace {

using kernels::Event;
using kernels::order;

constexpr std::uint64_t kOrders = 100;

class EmulatedGraphs : public ::testing::Test {
 protected:
  ~EmulatedGraphs() override { restart(seed()); }

  void queue(const Stream& on, char step) {
    enqueue(on.view(), std::string(1, step), [this, step] { steps_ += step; });
  }
  std::string take_steps() { return std::exchange(steps_, {}); }

  Stream stream_, side_;
  Event fork_, join_;

 private:
  std::string steps_;
};

TEST_F(EmulatedGraphs, KeepWhatIsQueuedUntilTheyAreReplayed) {
  for_each_order(kOrders, [&] {
    queue(stream_, 'a');
    const std::uint64_t number = begin_capture(stream_.view());
    EXPECT_EQ(kernels::capture_of(stream_.view()), number);
    EXPECT_EQ(kernels::capture_of(side_.view()), 0u);
    queue(stream_, 'b');
    queue(stream_, 'c');
    const Graph graph = end_capture(stream_.view());
    EXPECT_EQ(kernels::capture_of(stream_.view()), 0u);
    stream_.synchronize();
    EXPECT_EQ(take_steps(), "a");
    queue(stream_, 'a');
    replay(graph, stream_.view());
    queue(stream_, 'd');
    replay(graph, stream_.view());
    stream_.synchronize();
    EXPECT_EQ(take_steps(), "abcdbc");
  });
}

TEST_F(EmulatedGraphs, StreamsJoinByEvents) {
  std::vector<std::string> orders;
  for_each_order(1000, [&] {
    const std::uint64_t number = begin_capture(stream_.view());
    queue(stream_, 'a');
    order(stream_.view(), side_.view(), fork_);
    EXPECT_EQ(kernels::capture_of(side_.view()), number);
    queue(side_, 'b');
    queue(stream_, 'c');
    order(side_.view(), stream_.view(), join_);
    queue(stream_, 'd');
    const Graph graph = end_capture(stream_.view());
    EXPECT_EQ(kernels::capture_of(side_.view()), 0u);
    for (int repeat = 0; repeat < 2; ++repeat) replay(graph, stream_.view());
    stream_.synchronize();
    orders.push_back(take_steps());
  });
  const auto times = [&](const char* steps) { return std::ranges::count(orders, steps); };
  for (const char* steps : {"abcdabcd", "abcdacbd", "acbdabcd", "acbdacbd"})
    EXPECT_GT(times(steps), 0) << steps;
  EXPECT_EQ(times("abcdabcd") + times("abcdacbd") + times("acbdabcd") + times("acbdacbd"),
            static_cast<std::ptrdiff_t>(orders.size()));
}

TEST_F(EmulatedGraphs, ReplaysOfOneGraphComeOneAfterTheOther) {
  for_each_order(kOrders, [&] {
    begin_capture(stream_.view());
    queue(stream_, 'a');
    queue(stream_, 'b');
    const Graph graph = end_capture(stream_.view());
    replay(graph, stream_.view());
    replay(graph, side_.view());
    stream_.synchronize();
    side_.synchronize();
    EXPECT_EQ(take_steps(), "abab");
  });
}

TEST_F(EmulatedGraphs, RanksMeetInReplays) {
  for_each_order(20, [] {
    int arrived = 0, rounds = 0;
    run_on_streams(3, [&](int rank, StreamView stream) {
      int expected = 0;
      begin_capture(stream);
      enqueue(stream, "arrive", [&] { expected = (arrived++ / 3 + 1) * 3; });
      enqueue_when(
          stream, "meet", [&] { return arrived >= expected; }, [&] { rounds += !rank; });
      const Graph graph = end_capture(stream);
      for (int step = 0; step < 4; ++step) replay(graph, stream);
      synchronize(stream);
    });
    EXPECT_EQ(rounds, 4);
  });
}

/// A call forbidden in a capture throws, and the end of the capture throws, too.
TEST_F(EmulatedGraphs, WhatWaitsOrAllocatesBreaksThem) {
  const kernels::PinnedBuffer kept(8);
  Event recorded;
  recorded.record(side_.view());
  const std::vector<std::function<void()>> calls{
      [&] { stream_.synchronize(); },        [&] { side_.synchronize(); },
      [&] { (void)recorded.done(); },        [&] { Buffer(8, Memory::kDevice); },
      [&] { kernels::PinnedBuffer(8); },     [&] { recorded.hold(stream_.view()); },
      [&] { Event().hold(stream_.view()); },
  };
  for (const auto& call : calls) {
    begin_capture(stream_.view());
    EXPECT_THROW(call(), CudaError);
    EXPECT_THROW(end_capture(stream_.view()), CudaError);
    EXPECT_NO_THROW(call());
  }
}

TEST_F(EmulatedGraphs, FreeingBreaksThem) {
  auto memory = std::make_unique<Buffer>(8, Memory::kDevice);
  begin_capture(stream_.view());
  memory.reset();
  EXPECT_THROW(end_capture(stream_.view()), CudaError);
}

TEST_F(EmulatedGraphs, OtherThreadsMayWaitMeanwhile) {
  queue(side_, 'a');
  begin_capture(stream_.view());
  std::thread([&] {
    EXPECT_NO_THROW(side_.synchronize());
    EXPECT_THROW(stream_.synchronize(), CudaError);
    EXPECT_THROW(end_capture(stream_.view()), CudaError);
  }).join();
  EXPECT_NO_THROW(end_capture(stream_.view()));
}

TEST_F(EmulatedGraphs, EveryStreamIsJoinedAgain) {
  for (const bool joins : {true, false}) {
    begin_capture(stream_.view());
    order(stream_.view(), side_.view(), fork_);
    queue(side_, 'a');
    join_.record(side_.view());
    if (!joins) queue(side_, 'b');
    join_.hold(stream_.view());
    if (joins)
      EXPECT_NO_THROW(end_capture(stream_.view()));
    else
      EXPECT_THROW(end_capture(stream_.view()), CudaError);
    EXPECT_EQ(kernels::capture_of(side_.view()), 0u);
  }
}

TEST_F(EmulatedGraphs, EventsStayInside) {
  begin_capture(stream_.view());
  fork_.record(stream_.view());
  EXPECT_THROW((void)fork_.done(), CudaError);
  EXPECT_THROW(end_capture(stream_.view()), CudaError);
  EXPECT_THROW(fork_.hold(side_.view()), CudaError);

  begin_capture(stream_.view());
  begin_capture(side_.view());
  fork_.record(stream_.view());
  EXPECT_THROW(fork_.hold(side_.view()), CudaError);
  EXPECT_THROW(end_capture(side_.view()), CudaError);
  EXPECT_NO_THROW(end_capture(stream_.view()));
}

TEST_F(EmulatedGraphs, BeginAndEndOnOneStream) {
  EXPECT_THROW(begin_capture({}), CudaError);
  EXPECT_THROW(end_capture(stream_.view()), CudaError);
  begin_capture(stream_.view());
  EXPECT_THROW(begin_capture(stream_.view()), CudaError);
  order(stream_.view(), side_.view(), fork_);
  EXPECT_THROW(end_capture(side_.view()), CudaError);
  order(side_.view(), stream_.view(), join_);
  EXPECT_NO_THROW(end_capture(stream_.view()));
}

}  // namespace
}  // namespace tersor::emulator
