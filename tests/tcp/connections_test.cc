// Several connections per pair of ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

// All connections end before the receiver reads from any connection.
TEST(TcpConnections, WhatWasSentBeforeTheSenderLeftIsRead) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  auto transports = tcp_transports(2, {.connections = 3});
  const auto sent = pattern(kBytes, 1, 0);
  std::jthread sender([&] {
    transports[1]->send({.name = "send", .timeout = 20s}, 0, sent).wait_synchronize();
    transports[1].reset();
  });
  std::this_thread::sleep_for(4s);
  Handle handle = transports[0]->receive({.name = "send", .timeout = 20s}, 1, kBytes);
  handle.wait_synchronize();
  EXPECT_TRUE(std::ranges::equal(handle.received(1), sent));
}

}  // namespace
}  // namespace tersor::test
