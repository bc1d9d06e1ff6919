// A rank failing because of another rank's fault announces the fault before disconnecting.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tcp/fake_peer.h"
#include "tests/tcp/meeting.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kLong = 20s;
const std::string kSecret(64, '5');

void meet(Transport& transport, int peer, std::uint32_t tag) {
  const SendTo send{peer, {}};
  const ReceiveFrom receive{peer, 0};
  transport.exchange({.name = "meeting", .tag = tag, .timeout = kLong}, {&send, 1}, {&receive, 1})
      .wait_synchronize();
}

/// The error of a rank waiting for a message. A fault may arrive before an earlier message.
std::string error_of_waiting(Transport& transport, int peer) {
  try {
    meet(transport, peer, 0);
    transport.receive({.name = "message", .tag = 9, .timeout = kLong}, peer, 1).wait_synchronize();
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no error";
}

// Rank 0 has a wrong port for rank 2, so rank 2 never receives anything from rank 0.
TEST(TcpReason, IsForwardedBeforeDisconnect) {
  const std::vector<std::string> addresses = free_addresses(4);
  const std::vector<std::string> all(addresses.begin(), addresses.begin() + 3);
  const std::vector<std::string> of_first = {addresses[0], addresses[1], addresses[3]};
  std::string said;
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    const auto owned_transport = make_tcp_transport(of_first, kSecret, 0);
    Transport& transport = *owned_transport;
    meet(transport, 1, 0);
    transport.abort("out of cheese");
  });
  threads.emplace_back([&] {
    const auto owned_transport = make_tcp_transport(all, kSecret, 1);
    Transport& transport = *owned_transport;
    meet(transport, 2, 0);
    EXPECT_TRUE(says(error_of_waiting(transport, 0), "out of cheese"));
  });
  threads.emplace_back([&] {
    const auto owned_transport = make_tcp_transport(all, kSecret, 2);
    Transport& transport = *owned_transport;
    said = error_of_waiting(transport, 1);
  });
  threads.clear();
  EXPECT_TRUE(says(said, "rank 0 gave up: out of cheese"));
}

}  // namespace
}  // namespace tersor::test
