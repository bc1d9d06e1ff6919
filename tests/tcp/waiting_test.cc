// Waiting threads sleep and are woken by every awaited event, whichever thread receives the event.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>

#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLongWait = 20s;

constexpr long kFewSleeps = 100;  // in half a second; naps of 50 us would give thousands

/// The number of voluntary context switches of this thread.
long sleeps() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nvcsw;
}

TEST(TcpWaiting, LongWaitSleeps) {
  run_ranks(tcp_transports(2), [](Transport& transport) {
    transport.barrier(operation_of(transport)).wait_synchronize();
    if (transport.rank() == 1) std::this_thread::sleep_for(500ms);
    const long before = sleeps();
    transport.barrier(operation_of(transport)).wait_synchronize();
    if (transport.rank() == 0) EXPECT_LT(sleeps() - before, kFewSleeps);
    transport.barrier(operation_of(transport)).wait_synchronize();
  });
}

// Another thread of the rank receives messages for all threads.
TEST(TcpWaiting, WakesAfterAnotherThreadReceivesMessages) {
  constexpr int kRounds = 200;
  run_ranks(tcp_transports(2), [](Transport& transport) {
    const auto waiting = transport.channel();
    std::atomic<bool> over{false};
    std::jthread other([&] {
      while (!over) transport.progress(), std::this_thread::yield();
    });
    const auto start = Clock::now();
    for (int round = 0; round < kRounds; ++round) {
      if (round % 20 == transport.rank()) std::this_thread::sleep_for(1ms);
      exchange_all(*waiting, operation_of(*waiting), pattern(100, transport.rank(), 0));
    }
    EXPECT_LT(Clock::now() - start, kLongWait);
    over = true;
  });
}

TEST(TcpWaiting, WakesAfterAbortByAnotherThread) {
  run_ranks(tcp_transports(2), [](Transport& transport) {
    transport.barrier(operation_of(transport)).wait_synchronize();
    if (transport.rank() == 1) return std::this_thread::sleep_for(300ms);
    const auto channel = transport.channel();
    std::jthread other([&] {
      std::this_thread::sleep_for(100ms);
      transport.abort("the other thread has had enough");
    });
    const auto start = Clock::now();
    EXPECT_THROW(
        channel->receive({.name = "receive", .timeout = 2 * kLongWait}, 1, 10).wait_synchronize(),
        TransportError);
    EXPECT_LT(Clock::now() - start, kLongWait);
  });
}

TEST(TcpWaiting, WakesWithoutFreeDescriptors) {
  run_ranks(tcp_transports(2), [](Transport& transport) {
    transport.barrier(operation_of(transport)).wait_synchronize();
    if (transport.rank() == 0) {
      const auto channel = transport.channel();
      // A sanitizer's checks at the start and the end of a thread need descriptors.
      std::latch runs(1), restored(1);
      std::jthread other([&] {
        runs.count_down();
        std::this_thread::sleep_for(300ms);
        channel->wake();
        restored.wait();
      });
      runs.wait();
      const int next = dup(0);
      rlimit before{};
      getrlimit(RLIMIT_NOFILE, &before);
      const rlimit none{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = before.rlim_max};
      setrlimit(RLIMIT_NOFILE, &none);
      close(next);
      const auto start = Clock::now();
      channel->wait_activity(start + kLongWait);
      EXPECT_LT(Clock::now() - start, kLongWait);
      setrlimit(RLIMIT_NOFILE, &before);
      restored.count_down();
    }
    transport.barrier(operation_of(transport)).wait_synchronize();
  });
}

}  // namespace
}  // namespace tersor::test
