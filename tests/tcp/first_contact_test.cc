// The first connection between two ranks fails. Ranks retry until the timeout and then report the
// reason.
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <limits>
#include <string>
#include <system_error>

#include "tests/tcp/meeting.h"
#include "tests/tcp/system_calls.h"
#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr int kFewFailures = 3;
constexpr int kAll = std::numeric_limits<int>::max();
constexpr auto kLongContact = 20s;

void exchange_a_little(Transport& transport) {
  exchange_all(transport, {.name = "exchange", .timeout = kLongContact}, pattern(10, 0, 0));
}

class TcpFirstContact : public ::testing::TestWithParam<Failing> {};

INSTANTIATE_TEST_SUITE_P(Failing, TcpFirstContact,
                         ::testing::Values(Failing::kAtOnce, Failing::kLater),
                         [](const auto& when) {
                           return when.param == Failing::kAtOnce ? "AtOnce" : "Later";
                         });

TEST_P(TcpFirstContact, RetriesWhileNetworkIsUnavailable) {
  for (const int code : {EHOSTUNREACH, ENETUNREACH, ENETDOWN, EHOSTDOWN, ETIMEDOUT, ECONNRESET,
                         ECONNABORTED, EAGAIN, ENOBUFS, ENOMEM, EADDRNOTAVAIL}) {
    auto transports = tcp_transports(2);
    const FailingConnects failing(code, kFewFailures, GetParam());
    run_ranks(std::move(transports), exchange_a_little);
    EXPECT_EQ(failing.left(), 0) << "nobody called again";
  }
}

// A rank may send, then wait for something else without polling the transport. A message queued
// until the connection exists must still leave.
TEST(TcpFirstMessage, SentMessageLeavesWithoutPolling) {
  std::promise<void> came;
  run_ranks(tcp_transports(2), [&](Transport& transport) {
    const Operation operation{.name = "message", .timeout = kLongContact};
    if (transport.rank() == 1) {
      transport.receive(operation, 0, 10).wait_synchronize();
      came.set_value();
    } else {
      transport.send(operation, 1, pattern(10, 0, 0)).wait_synchronize();
      EXPECT_EQ(came.get_future().wait_for(kLongContact), std::future_status::ready);
    }
  });
}

// A connection may be made between a rank's check of existing connections and the poll for events.
// The poll consumes the wake-up event, and without another check the rank would sleep forever.
TEST(TcpFirstMessage, UsesConnectionCompletedBetweenTwoPolls) {
  for (int look = 1; look <= 8; ++look) {
    SCOPED_TRACE(::testing::Message() << "look " << look);
    run_ranks(tcp_transports(2), [&](Transport& transport) {
      const LateLook late(look, 20ms);
      exchange_a_little(transport);
    });
  }
}

/// The error of a rank, and its delay, if all connection attempts fail with `code`.
std::string error_where_all_fail(int code, Failing when, std::chrono::milliseconds timeout) {
  auto transports = tcp_transports(2, {.timeout = timeout});
  const FailingConnects failing(code, kAll, when);
  std::string said;
  run_ranks(std::move(transports), [&](Transport& transport) {
    std::string error = "no error";
    try {
      exchange_a_little(transport);
    } catch (const TransportError& thrown) {
      error = thrown.what();
    }
    EXPECT_TRUE(says(error, std::system_category().message(code)));
    if (transport.rank() == 0) said = error;
  });
  return said;
}

TEST_P(TcpFirstContact, ReportsReasonAfterTimeout) {
  const auto start = Clock::now();
  const std::string error = error_where_all_fail(EHOSTUNREACH, GetParam(), 500ms);
  EXPECT_TRUE(says(error, "cannot be reached at 127.0.0.1:"));
  EXPECT_GE(Clock::now() - start, 500ms);
  EXPECT_LT(Clock::now() - start, kLongContact / 2);
}

// A rank listens at the published address during the whole lifetime. Therefore a refusal is final.
TEST_P(TcpFirstContact, RefusalFailsBeforeTimeout) {
  for (const int code : {ECONNREFUSED, EACCES}) {
    const auto start = Clock::now();
    error_where_all_fail(code, GetParam(), kLongContact);
    EXPECT_LT(Clock::now() - start, kLongContact / 2);
  }
}

}  // namespace
}  // namespace tersor::test
