// Several connections per pair of ranks, and sends that end before their bytes leave.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

// All connections end before the receiver reads from any connection.
TEST(TcpConnections, ReceivesMessageAfterSenderLeft) {
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

// The payload fits into the socket's buffer, exceeds the buffer, or exceeds the receiver's credit.
TEST(TcpConnections, DroppedSendReleasesCallerMemory) {
  for (const TcpOptions& options :
       {TcpOptions{}, TcpOptions{.connections = 3},
        TcpOptions{.connections = 2, .protect = TcpProtection::kEncrypt}})
    for (const std::size_t bytes :
         {std::size_t{1'000}, std::size_t{12} << 20, std::size_t{40} << 20}) {
      auto transports = tcp_transports(2, options);
      const auto sent = pattern(bytes, 0, 1);
      auto memory = std::make_unique<std::vector<std::byte>>(sent);
      try {
        const std::shared_ptr<const void> not_owned(std::shared_ptr<void>(), memory.get());
        const Handle handle =
            transports[0]->send({.name = "send", .tag = 1, .keep_alive = not_owned}, 1, *memory);
        throw std::runtime_error("drops the handle");
      } catch (const std::runtime_error&) {
        std::ranges::fill(*memory, std::byte{0xee});
        memory.reset();
      }
      const std::jthread sender([&] {
        transports[0]->receive({.tag = 2}, 1, 0).wait_synchronize();
        transports[0].reset();
      });
      {
        Handle handle =
            transports[1]->receive({.name = "send", .tag = 1, .timeout = 20s}, 0, bytes);
        handle.wait_synchronize();
        EXPECT_TRUE(equal_bytes(handle.received(0), sent)) << bytes << " bytes";
      }
      transports[1]->send({.tag = 2}, 0, {}).wait_synchronize();
      transports[1].reset();
    }
}

}  // namespace
}  // namespace tersor::test
