// Closing transports while transport objects or channels still live.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

std::string error_of_receiving(Transport& transport, int peer) {
  try {
    transport.receive({.name = "receive", .timeout = 20s}, peer, 1).wait_synchronize();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no error";
}

class TcpClose : public testing::Test {
 protected:
  Transport& closer() { return *transports_[0]; }
  Transport& other() { return *transports_[1]; }

 private:
  std::vector<std::unique_ptr<Transport>> transports_ = tcp_transports(2);
};

TEST_F(TcpClose, FailsPendingReceives) {
  const auto channel = closer().channel();
  std::string here, there;
  {
    const std::jthread waits([&] { here = error_of_receiving(*channel, 1); });
    const std::jthread peer([&] { there = error_of_receiving(other(), 0); });
    std::this_thread::sleep_for(200ms);
    closer().close();
  }
  EXPECT_TRUE(says(here, "rank 0 closed the transport") || says(here, "rank 0 left")) << here;
  EXPECT_TRUE(says(there, "rank 0 left"));
  EXPECT_TRUE(says(error_of_receiving(closer(), 1), "aborted"));
}

TEST_F(TcpClose, IsIdempotent) {
  closer().close();
  closer().close();
  EXPECT_TRUE(says(error_of_receiving(closer(), 1), "rank 0 closed the transport"));
}

// No rank receives the sent message, and the queued fault is never delivered.
TEST_F(TcpClose, SucceedsWithUndeliveredFault) {
  const auto much = pattern(std::size_t{64} << 20, 0, 1);
  const Handle sent = closer().send({.name = "send", .timeout = 20s}, 1, much);
  closer().abort("a test says so");
  closer().close();
  EXPECT_THROW(closer().progress(), TransportError);
}

}  // namespace
}  // namespace tersor::test
