// Transport conformance: if ranks disagree, stall, leave or throw, every rank raises an error with
// the failed rank, the operation and the cause. No rank hangs or gets a wrong sum.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

class TransportFaults : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportFaults, ::testing::ValuesIn(fabrics()), fabric_name);

/// The errors of a call missed by rank 2.
std::vector<std::string> errors_without_rank_2(const Fabric& fabric, int which, std::size_t count,
                                               std::chrono::milliseconds timeout) {
  auto errors = errors_of(fabric, 4, [&](Transport& transport) {
    if (transport.rank() == 2) return;
    call(transport, which, {.name = "allreduce", .tag = 9, .timeout = timeout}, count);
  });
  EXPECT_EQ(errors[2], "");
  errors.erase(errors.begin() + 2);
  return errors;
}

// Every rank names rank 2, even ranks waiting for another rank. On a busy machine, another rank may
// also be late in the first attempt.
TEST_P(TransportFaults, AllRanksReportStalledRankAtTimeout) {
  for (int which = 0; which < kCalls; ++which)
    for (const std::size_t count : {100u, 100'000u}) {
      SCOPED_TRACE(::testing::Message() << "call " << which << ", " << count << " values");
      auto timeout = 100ms;
      auto errors = errors_without_rank_2(GetParam(), which, count, timeout);
      const auto names_another = [](const std::string& error) {
        return !says(error, "from rank 2");
      };
      if (std::ranges::any_of(errors, names_another)) {
        timeout = 3s;
        errors = errors_without_rank_2(GetParam(), which, count, timeout);
      }
      const std::string within = std::to_string(timeout.count()) + " ms";
      expect_all_fail(errors, {"allreduce", "no message from rank 2 within " + within});
    }
}

// All ranks have started, and in a ring every rank waits for another rank.
TEST_P(TransportFaults, AllRanksReportRankStalledInSum) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    std::vector<float> values(100'000);
    // Rank 2 starts first and cannot finish its part of the sum at once.
    if (transport.rank() != 2) std::this_thread::sleep_for(50ms);
    Handle handle = transport.sum({.name = "allreduce", .tag = 9, .timeout = 300ms},
                                  cut(values, even_counts(100'000, 4)));
    if (transport.rank() == 2) std::this_thread::sleep_for(1s);
    handle.wait_synchronize();
  });
  expect_all_fail(errors, {"allreduce", "no message from rank 2 within 300 ms"});
}

TEST_P(TransportFaults, ReportsAllStalledRanks) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() % 2 == 1) return;
    call(transport, 0, {.name = "allgather", .tag = 9, .timeout = 100ms}, 10);
  });
  EXPECT_TRUE(says(errors[0], "rank 1 and rank 3"));
  EXPECT_TRUE(says(errors[2], "rank 1 and rank 3"));
}

// Only missing messages are named, not the messages already received.
TEST_P(TransportFaults, ExchangeReportsMissingSender) {
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    const SendTo to{0, {}};
    const std::vector<ReceiveFrom> from = {{1, 0}, {2, 0}};
    const Operation operation{.name = "star", .tag = 3, .timeout = 100ms};
    if (transport.rank() == 1) transport.exchange(operation, {&to, 1}, {}).wait_synchronize();
    transport.barrier({.name = "meeting"}).wait_synchronize();
    if (transport.rank() == 0) transport.exchange(operation, {}, from).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "star on rank 0: no message from rank 2 within"));
}

// Rank 2 waits only for rank 1. Rank 1 waits for rank 2 and for silent rank 0.
TEST_P(TransportFaults, InquiryFollowsAllAwaitedRanks) {
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    const int rank = transport.rank();
    const Operation operation{
        .name = "round", .tag = 3, .timeout = rank == 2 ? std::chrono::milliseconds(1s) : 20s};
    const std::vector<ReceiveFrom> from = {{0, 0}, {2, 0}}, from_first = {{1, 0}};
    Handle handle;
    if (rank != 0) handle = transport.exchange(operation, {}, rank == 1 ? from : from_first);
    transport.channel()->barrier({.name = "meeting"}).wait_synchronize();
    if (rank != 0) handle.wait_synchronize();
  });
  EXPECT_TRUE(says(errors[2], "round on rank 2: no message from rank 0 within"));
  EXPECT_TRUE(says(errors[1], errors[2]));
}

// The error names the rank at the end of the chain.
TEST_P(TransportFaults, ReportsLastRankOfWaitChain) {
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    const bool first = transport.rank() == 0;
    if (transport.rank() == 2) return;
    const Operation operation{.name = "relay",
                              .tag = first ? 5u : 4u,
                              .timeout = first ? std::chrono::milliseconds(200ms) : 20s};
    transport.receive(operation, transport.rank() + 1, 8).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "no message from rank 2 within 200 ms"));
  EXPECT_TRUE(says(errors[1], "no message from rank 2 within 200 ms"));
}

TEST_P(TransportFaults, ReceiveAndReceiveAnyTimeOut) {
  auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 0)
      transport.receive({.name = "gossip", .timeout = 50ms}, 1, 8).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "gossip on rank 0: no message from rank 1"));
  errors = errors_of(GetParam(), 3, [&](Transport& transport) {
    if (transport.rank() == 0 && transport.traits().receive_any)
      transport.receive_any({.name = "serve", .timeout = 50ms}, 8).wait_synchronize();
    else if (transport.rank() == 0)
      throw TransportError("serve: rank 1 and rank 2");
  });
  EXPECT_TRUE(says(errors[0], "serve"));
  EXPECT_TRUE(says(errors[0], "rank 1 and rank 2"));
}

TEST_P(TransportFaults, TestAndWaitActivityEnforceTimeout) {
  for (const bool by_test : {true, false}) {
    const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
      if (transport.rank() == 1) return;
      Handle handle = transport.barrier({.name = "barrier", .timeout = 50ms});
      while (by_test && !handle.test()) std::this_thread::sleep_for(1ms);
      while (true) transport.wait_activity(Clock::now() + 10s);
    });
    EXPECT_TRUE(says(errors[0], "no message from rank 1 within 50 ms"));
  }
}

TEST_P(TransportFaults, AbortedTransportFailsAllCallsAtOnce) {
  run(2, [](Transport& transport) {
    const auto channel = transport.channel();
    Handle open = transport.receive({.name = "first", .tag = 1}, 1 - transport.rank(), 8);
    Handle waiting = channel->barrier({.name = "first"});
    waiting.wait_synchronize();
    try {
      if (transport.rank() == 1)
        channel->send({.name = "done", .tag = 1}, 0, {}).wait_synchronize();
      if (transport.rank() == 0) {
        channel->receive({.name = "done", .tag = 1}, 1, 0).wait_synchronize();
        transport.abort("the disk is full");
      }
      while (true) transport.wait_activity(Clock::now() + 10s);
    } catch (const TransportError&) {  // rank 1 may receive the error while still sending
    }
    const auto start = Clock::now();
    for (Transport* each : {&transport, channel.get()}) {
      for (int which = 0; which < kCalls; ++which) try {
          call(*each, which, {.name = "later"}, 10);
          ADD_FAILURE() << "no error";
        } catch (const TransportError& error) {
          EXPECT_TRUE(says(error.what(), "later: the transport was aborted"));
          EXPECT_TRUE(says(error.what(), "rank 0 gave up: the disk is full"));
        }
      EXPECT_THROW(each->progress(), TransportError);
      EXPECT_THROW(each->wait_activity(start + 10s), TransportError);
      EXPECT_THROW(each->channel(), TransportError);
      EXPECT_THROW(each->split(std::vector<int>{0, 1}), TransportError);
    }
    EXPECT_THROW(open.test(), TransportError);
    EXPECT_TRUE(waiting.test());  // completed operations stay completed
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST_P(TransportFaults, KeepsFirstAbortReason) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 0) {
      transport.abort("first");
      transport.abort("second");
    }
    transport.barrier({.name = "barrier", .timeout = 20s}).wait_synchronize();
  });
  expect_all_fail(errors, {"rank 0 gave up: first"});
}

TEST_P(TransportFaults, AllRanksReportThrownException) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() == 3) throw std::out_of_range("no such image");
    call(transport, 2, {.name = "allreduce", .timeout = 20s}, 70'000);
  });
  EXPECT_EQ(errors[3], "no such image");
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(says(errors[rank], "rank 3 gave up: no such image"));
}

TEST_P(TransportFaults, ReportsDepartedRank) {
  for (int which = 0; which < kCalls; ++which)
    for (const int leaver : {0, 2}) try {
        run(3, [&](Transport& transport) {
          if (transport.rank() == leaver) return;
          call(transport, which, {.name = "allreduce", .timeout = 20s}, 70'000);
        });
        ADD_FAILURE() << "no error";
      } catch (const TransportError& error) {
        EXPECT_TRUE(says(error.what(), "rank " + std::to_string(leaver) + " left"));
      }
}

/// The error of a run of two ranks. Rank 1 finishes before rank 0 starts to wait.
std::string error_after_leaving(const Fabric& fabric, const Body& leaver, const Body& stayer) {
  try {
    fabric.run(2, [&](Transport& transport) {
      if (transport.rank() == 1) return leaver(transport);
      std::this_thread::sleep_for(30ms);
      stayer(transport);
    });
  } catch (const TransportError& error) {
    return error.what();
  }
  return "no error";
}

TEST_P(TransportFaults, ReportsEarlierDeparture) {
  const auto leave = [](Transport&) {};
  const auto in_a_channel_of_its_own = [](Transport& transport) {
    const auto channel = transport.channel();
    channel->receive({.name = "reducer", .timeout = 20s}, 1, 8).wait_synchronize();
  };
  const auto receive = [](Transport& transport) {
    transport.receive({.name = "reducer", .timeout = 20s}, 1, 8).wait_synchronize();
  };
  const auto send = [](Transport& transport) {
    for (int attempt = 0; attempt < 1000; ++attempt) {  // until the leaving rank is known
      transport.send({.name = "reducer", .timeout = 20s}, 1, {}).wait_synchronize();
      transport.progress();
      std::this_thread::sleep_for(10ms);
    }
  };
  for (const Body& stayer : {Body(in_a_channel_of_its_own), Body(receive), Body(send)}) {
    const std::string error = error_after_leaving(GetParam(), leave, stayer);
    EXPECT_TRUE(says(error, "reducer on rank 0: rank 1 left"));
  }
}

TEST_P(TransportFaults, ReportsClosedChannelOfRunningRank) {
  const std::string error = error_after_leaving(
      GetParam(),
      [](Transport& transport) {
        transport.channel().reset();
        while (true) transport.wait_activity(Clock::now() + 20s);  // until poisoned
      },
      [](Transport& transport) {
        transport.channel()->barrier({.name = "reducer", .timeout = 20s}).wait_synchronize();
      });
  EXPECT_TRUE(says(error, "reducer on rank 0: rank 1 left"));
}

TEST_P(TransportFaults, ReceiveAnyFailsAfterAllPeersLeft) {
  const std::string error = error_after_leaving(
      GetParam(), [](Transport&) {},
      [](Transport& transport) {
        if (!transport.traits().receive_any) throw TransportError("every other rank left");
        transport.receive_any({.name = "serve", .timeout = 20s}, 8).wait_synchronize();
      });
  EXPECT_TRUE(says(error, "every other rank left"));
}

// Messages sent before leaving still arrive.
TEST_P(TransportFaults, LeavingAfterTheLastMessageIsNoFault) {
  for (int round = 0; round < 20; ++round)
    run(4, [](Transport& transport) {
      call(transport, 2, operation_of(transport), 100'000);
      if (transport.rank() == 0) {
        transport.send({.name = "last", .tag = 100}, 1, pattern(100'000, 0, 1)).wait_synchronize();
      } else if (transport.rank() == 1) {
        std::this_thread::sleep_for(2ms);
        Handle handle = transport.receive({.name = "last", .tag = 100}, 0, 100'000);
        handle.wait_synchronize();
        EXPECT_TRUE(equal_bytes(handle.received(0), pattern(100'000, 0, 1)));
      }
    });
}

/// Expects an error that names rank 0 as the rank that left.
void expect_error_after_close(Transport& transport, int peer) {
  try {
    transport.receive({.name = "receive", .timeout = 20s}, peer, 1).wait_synchronize();
    ADD_FAILURE() << "no error";
  } catch (const TransportError& error) {
    EXPECT_TRUE(says(error.what(), "rank 0 left") ||
                says(error.what(), "rank 0 closed the transport"))
        << error.what();
  }
}

// Rank 0 closes its transport while a channel exists and the other ranks wait.
TEST_P(TransportFaults, CloseFailsWaitsOnAllRanks) {
  run(3, [](Transport& transport) {
    const auto channel = transport.rank() == 0 ? transport.channel() : nullptr;
    if (transport.rank() != 0) return expect_error_after_close(transport, 0);
    for (int attempt = 0; attempt < 2; ++attempt) transport.close();
    for (Transport* one : {&transport, channel.get()}) expect_error_after_close(*one, 1);
  });
}

TEST_P(TransportFaults, AbortFromAnotherThreadEndsWait) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 1) return;
    std::jthread watchdog([&] {
      std::this_thread::sleep_for(20ms);
      transport.abort("stopped by hand");
    });
    transport.barrier({.name = "barrier", .timeout = 20s}).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "stopped by hand"));
}

// Errors in a split name ranks of the split and of the parent transport.
TEST_P(TransportFaults, SplitErrorsReportLocalAndGlobalRanks) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() < 2) return;
    const auto pair = transport.split(std::vector<int>{2, 3});
    if (pair->rank() == 0) pair->barrier({.name = "pair", .timeout = 50ms}).wait_synchronize();
    std::this_thread::sleep_for(200ms);
    transport.progress();
  });
  EXPECT_TRUE(says(errors[2], "no message from rank 1 of the split (3 of all)"));
  EXPECT_TRUE(says(errors[3], "no message from rank 1 of the split (3 of all)"));
}

// Handles dropped during unwinding, with messages still under way.
TEST_P(TransportFaults, HandlesMayBeDroppedDuringUnwinding) {
  for (int round = 0; round < 10; ++round) {
    const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      std::vector<float> values(300'000);
      const auto send = pattern(200'000, transport.rank(), 0);
      Handle gather = transport.all_gather({.name = "gather", .tag = 1}, send, 200'000);
      Handle sum = transport.sum({.name = "sum", .tag = 2}, cut(values, even_counts(300'000, 3)));
      if (transport.rank() == 0) transport.abort("enough");
      transport.barrier({.name = "barrier", .tag = 3}).wait_synchronize();
    });
    for (const std::string& error : errors)
      EXPECT_TRUE(error.empty() || says(error, "enough")) << error;
    EXPECT_NE(errors[0], "");
  }
}

// An exception may drop a handle before the peers' messages of the same call arrive. These messages
// are no disagreement.
TEST_P(TransportFaults, DroppedCallIsNotAMismatch) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    const auto send = pattern(100, transport.rank(), 0);
    const Operation gather{.name = "gather", .tag = 1, .takes_all = true};
    if (transport.rank() == 1) transport.all_gather(gather, send, 100);
    transport.barrier({.name = "barrier", .tag = 2}).wait_synchronize();
    if (transport.rank() == 0) transport.all_gather(gather, send, 100).wait_synchronize();
    transport.barrier({.name = "barrier", .tag = 3}).wait_synchronize();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace tersor::test
