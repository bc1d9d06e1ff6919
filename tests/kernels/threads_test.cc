// The thread pool: every task runs once, errors, float modes, and many short runs.

#include <tersor/error.h>
#include <tersor/threads.h>

#include "kernels/scalar/float_mode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tersor {
namespace {

TEST(Threads, RunEveryTaskOnce) {
  for (const unsigned threads : {1u, 2u, 3u, 8u}) {
    Threads pool(threads);
    EXPECT_EQ(pool.count(), threads);
    for (const std::size_t tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> done(tasks);
      pool.run(tasks, [&](std::size_t index) { ++done[index]; });
      for (const auto& times : done) ASSERT_EQ(times, 1) << threads << " threads, " << tasks;
    }
  }
}

TEST(Threads, ZeroMeansAllCores) {
  EXPECT_EQ(Threads(0).count(), std::max(1u, std::thread::hardware_concurrency()));
}

TEST(Threads, TooManyAreRejected) { EXPECT_THROW(Threads(1u << 20), InvalidArgumentError); }

TEST(Threads, CallerTakesPartInRun) {
  Threads pool(2);
  std::atomic<int> inside{0};
  std::set<std::thread::id> ids;
  std::mutex mutex;
  pool.run(2, [&](std::size_t) {
    ++inside;
    while (inside != 2) std::this_thread::yield();  // ends only with two threads
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id()));
}

TEST(Threads, ErrorsPropagateAndPoolRemainsUsable) {
  for (const unsigned threads : {1u, 3u}) {
    Threads pool(threads);
    for (int round = 0; round < 20; ++round) {
      EXPECT_THROW(pool.run(50, [](std::size_t) { throw std::runtime_error("task"); }),
                   std::runtime_error);
      std::atomic<int> done{0};
      pool.run(50, [&](std::size_t) { ++done; });
      EXPECT_EQ(done, 50);
    }
  }
}

TEST(Threads, ManyShortRuns) {
  for (const unsigned threads : {2u, 5u}) {
    Threads pool(threads);
    std::atomic<std::size_t> sum{0};
    for (std::size_t round = 0; round < 70000; ++round)  // exceeds the 16 bits of a job number
      pool.run(3, [&](std::size_t index) { sum += index; });
    EXPECT_EQ(sum, 70000u * 3);
  }
}

TEST(Threads, WakeFromSleep) {
  Threads pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> done{0};
    pool.run(10, [&](std::size_t) { ++done; });
    ASSERT_EQ(done, 10);
  }
}

/// True if 1 + 2^-25 rounds to 1 (round to nearest). volatile prevents constant folding.
bool rounds_to_nearest() {
  volatile float one = 1, little = 0x1p-25f;
  return one + little == 1 && -one - little == -1;
}

TEST(Threads, TasksRunInDefaultFloatMode) {
  Threads pool(3);
  std::fesetround(FE_UPWARD);
  EXPECT_FALSE(rounds_to_nearest());
  std::atomic<int> wrong{0};
  for (const std::size_t tasks : {1, 64})
    pool.run(tasks, [&](std::size_t) { wrong += !rounds_to_nearest(); });
  EXPECT_FALSE(rounds_to_nearest()) << "the caller's mode comes back";
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(wrong, 0);
}

TEST(FloatMode, IsSetAndRestored) {
  std::fesetround(FE_DOWNWARD);
  {
    const kernels::DefaultFloatMode mode;
    EXPECT_TRUE(rounds_to_nearest());
  }
  EXPECT_FALSE(rounds_to_nearest());
  std::fesetround(FE_TONEAREST);
}

}  // namespace
}  // namespace tersor
