// What every transport must do when ranks disagree, stall, leave or throw: every rank ends with an
// error that names who, in which operation, and why. Nobody hangs, nobody gets a wrong sum.
#include <chrono>
#include <stdexcept>

#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

class TransportFaults : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportFaults, ::testing::ValuesIn(fabrics()), fabric_name);

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Every rank has failed, and each error says all of `parts`.
void expect_all_fail(const std::vector<std::string>& errors,
                     const std::vector<std::string>& parts) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank)
    for (const std::string& part : parts)
      EXPECT_TRUE(contains(errors[rank], part))
          << "rank " << rank << " says \"" << errors[rank] << "\", not " << part;
}

void exchange_all(Transport& transport, const Operation& operation, ConstByteSpan bytes) {
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (const int peer : peers_of(transport)) {
    sends.push_back({peer, bytes});
    receives.push_back({peer, bytes.size()});
  }
  transport.exchange(operation, sends, receives).wait_synchronize();
}

/// Some operation of many, by number, on `count` f32 values.
constexpr int kCalls = 6;
void call(Transport& transport, int which, const Operation& operation, std::size_t count) {
  std::vector<float> values(count, 1.0f);
  const auto parts = cut(values, even_counts(count, transport.ranks()));
  const ConstByteSpan bytes = std::as_bytes(std::span(values));
  const auto ranks = static_cast<std::size_t>(transport.ranks());
  const std::vector<ConstByteSpan> sends(ranks, bytes);
  const std::vector<std::size_t> capacities(ranks, bytes.size());
  switch (which) {
    case 0:
      return transport.all_gather(operation, bytes, bytes.size()).wait_synchronize();
    case 1:
      return transport.all_to_all(operation, sends, capacities).wait_synchronize();
    case 2:
      return transport.sum(operation, parts).wait_synchronize();
    case 3:
      return transport.maximum(operation, parts).wait_synchronize();
    case 4:
      return exchange_all(transport, operation, bytes);
    default:
      return transport.barrier(operation).wait_synchronize();
  }
}

// Rank 2 never calls; the others were told so, each of them, whichever rank they wait for.
TEST_P(TransportFaults, AStalledRankIsNamedAtTheDeadline) {
  for (int which = 0; which < kCalls; ++which)
    for (const std::size_t count : {100u, 100'000u}) {
      SCOPED_TRACE(::testing::Message() << "call " << which << ", " << count << " values");
      const auto start = Clock::now();
      auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
        if (transport.rank() == 2) return;
        call(transport, which, {.name = "allreduce", .tag = 9, .timeout = 100ms}, count);
      });
      EXPECT_LT(Clock::now() - start, 5s);
      EXPECT_EQ(errors[2], "");
      errors.erase(errors.begin() + 2);
      expect_all_fail(errors, {"allreduce", "no message from rank 2 within 100 ms"});
    }
}

// Everybody has begun, and in a ring everybody waits for somebody then.
TEST_P(TransportFaults, ARankThatStopsWithinASumIsNamed) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    std::vector<float> values(100'000);
    // Rank 2 begins alone, so that its start cannot run through to the end.
    if (transport.rank() != 2) std::this_thread::sleep_for(50ms);
    Handle handle = transport.sum({.name = "allreduce", .tag = 9, .timeout = 300ms},
                                  cut(values, even_counts(100'000, 4)));
    if (transport.rank() == 2) std::this_thread::sleep_for(1s);
    handle.wait_synchronize();
  });
  expect_all_fail(errors, {"allreduce", "no message from rank 2 within 300 ms"});
}

TEST_P(TransportFaults, AllStalledRanksAreNamed) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() % 2 == 1) return;
    call(transport, 0, {.name = "allgather", .tag = 9, .timeout = 100ms}, 10);
  });
  EXPECT_TRUE(contains(errors[0], "rank 1 and rank 3")) << errors[0];
  EXPECT_TRUE(contains(errors[2], "rank 1 and rank 3")) << errors[2];
}

// Of those that an exchange waits for, not those whose messages came.
TEST_P(TransportFaults, AnExchangeNamesWhoDoesNotSend) {
  const auto errors = errors_of(GetParam(), 3, [](Transport& transport) {
    const SendTo to{0, {}};
    const std::vector<ReceiveFrom> from = {{1, 0}, {2, 0}};
    const Operation operation{.name = "star", .tag = 3, .timeout = 100ms};
    if (transport.rank() == 1) transport.exchange(operation, {&to, 1}, {}).wait_synchronize();
    transport.barrier({.name = "meeting"}).wait_synchronize();
    if (transport.rank() == 0) transport.exchange(operation, {}, from).wait_synchronize();
  });
  EXPECT_TRUE(contains(errors[0], "star on rank 0: no message from rank 2 within")) << errors[0];
}

TEST_P(TransportFaults, ReceiveHasADeadlineToo) {
  auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 0)
      transport.receive({.name = "gossip", .timeout = 50ms}, 1, 8).wait_synchronize();
  });
  EXPECT_TRUE(contains(errors[0], "gossip on rank 0: no message from rank 1")) << errors[0];
  errors = errors_of(GetParam(), 3, [&](Transport& transport) {
    if (transport.rank() == 0 && transport.traits().receive_any)
      transport.receive_any({.name = "serve", .timeout = 50ms}, 8).wait_synchronize();
    else if (transport.rank() == 0)
      throw TransportError("serve: rank 1 and rank 2");
  });
  EXPECT_TRUE(contains(errors[0], "serve") && contains(errors[0], "rank 1 and rank 2"))
      << errors[0];
}

TEST_P(TransportFaults, TestAndWaitActivityKeepTheDeadline) {
  for (const bool by_test : {true, false}) {
    const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
      if (transport.rank() == 1) return;
      Handle handle = transport.barrier({.name = "barrier", .timeout = 50ms});
      while (by_test && !handle.test()) std::this_thread::sleep_for(1ms);
      while (true) transport.wait_activity(Clock::now() + 10s);
    });
    EXPECT_TRUE(contains(errors[0], "no message from rank 1 within 50 ms")) << errors[0];
  }
}

TEST_P(TransportFaults, AnotherSignatureEndsOnAllRanks) {
  for (int which = 0; which < kCalls; ++which) {
    SCOPED_TRACE(::testing::Message() << "call " << which);
    const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
      const std::uint64_t signature = transport.rank() == 2 ? 1 : 0;
      call(transport, which, {.name = "allreduce", .signature = signature, .timeout = 20s}, 50'000);
    });
    expect_all_fail(errors, {"allreduce", "rank 2", "another signature"});
  }
}

TEST_P(TransportFaults, AnotherOperationEndsOnAllRanks) {
  for (int one = 0; one < kCalls; ++one)
    for (int other = 0; other < kCalls; ++other) {
      if (one == other) continue;
      SCOPED_TRACE(::testing::Message() << "calls " << one << " and " << other);
      const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
        call(transport, transport.rank() == 1 ? other : one, {.name = "step", .timeout = 20s}, 999);
      });
      expect_all_fail(errors, {"step", "rank 1", "calls", "where this rank calls"});
    }
}

TEST_P(TransportFaults, AnotherCountOrTypeOfASumEndsOnAllRanks) {
  for (const std::size_t count : {0u, 7u, 90'000u}) {
    const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      call(transport, 2, {.name = "allreduce", .timeout = 20s},
           transport.rank() == 0 ? count : 80'000);
    });
    expect_all_fail(errors, {"allreduce", "80000 values of f32"});
    expect_all_fail(errors, {std::to_string(count) + " values of f32"});
  }
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    std::vector<Bf16> halves(1000);
    std::vector<F16> others(1000);
    const ValueSpan values = transport.rank() == 0 ? ValueSpan(halves) : ValueSpan(others);
    transport.sum({.name = "sum", .timeout = 20s}, cut(values, {500, 500})).wait_synchronize();
  });
  expect_all_fail(errors, {"1000 values of bf16", "1000 values of f16"});
}

// The same count and dtype, but other parts: found by the bytes of the chunks.
TEST_P(TransportFaults, OtherPartsOfASumEndOnAllRanks) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    std::vector<float> values(40'000);
    const std::size_t first = transport.rank() == 0 ? 20'000 : 10'000;
    transport.sum({.name = "sum", .timeout = 20s}, cut(values, {first, 40'000 - first}))
        .wait_synchronize();
  });
  expect_all_fail(errors, {"sum", "sends", "bytes where this rank takes"});
}

TEST_P(TransportFaults, AMessageLongerThanTheCapacityEndsOnAllRanks) {
  const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
    const std::vector<std::byte> send(transport.rank() == 1 ? 300 : 200);
    transport.all_gather({.name = "allgather", .timeout = 20s}, send, 200).wait_synchronize();
    transport.barrier({.name = "allgather", .tag = 1, .timeout = 20s}).wait_synchronize();
  });
  expect_all_fail(errors,
                  {"allgather", "rank 1 sends 300 bytes where this rank takes at most 200"});
}

TEST_P(TransportFaults, APoisonedTransportSaysSoAtOnce) {
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
        transport.poison("the disk is full");
      }
      while (true) transport.wait_activity(Clock::now() + 10s);
    } catch (const TransportError&) {  // rank 1 may hear of it while it still sends
    }
    const auto start = Clock::now();
    for (Transport* each : {&transport, channel.get()}) {
      for (int which = 0; which < kCalls; ++which) try {
          call(*each, which, {.name = "later"}, 10);
          ADD_FAILURE() << "no error";
        } catch (const TransportError& error) {
          EXPECT_TRUE(contains(error.what(), "later: the transport is poisoned")) << error.what();
          EXPECT_TRUE(contains(error.what(), "rank 0 gave up: the disk is full")) << error.what();
        }
      EXPECT_THROW(each->progress(), TransportError);
      EXPECT_THROW(each->wait_activity(start + 10s), TransportError);
      EXPECT_THROW(each->channel(), TransportError);
      EXPECT_THROW(each->split(std::vector<int>{0, 1}), TransportError);
    }
    EXPECT_THROW(open.test(), TransportError);
    EXPECT_TRUE(waiting.test());  // what was done stays done
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST_P(TransportFaults, TheFirstCauseStays) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 0) {
      transport.poison("first");
      transport.poison("second");
    }
    transport.barrier({.name = "barrier", .timeout = 20s}).wait_synchronize();
  });
  expect_all_fail(errors, {"rank 0 gave up: first"});
}

TEST_P(TransportFaults, ARankThatThrowsIsHeardEverywhere) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() == 3) throw std::out_of_range("no such image");
    call(transport, 2, {.name = "allreduce", .timeout = 20s}, 70'000);
  });
  EXPECT_EQ(errors[3], "no such image");
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_TRUE(contains(errors[rank], "rank 3 gave up: no such image")) << errors[rank];
}

TEST_P(TransportFaults, ARankThatLeavesIsNamed) {
  for (int which = 0; which < kCalls; ++which)
    for (const int leaver : {0, 2}) try {
        run(3, [&](Transport& transport) {
          if (transport.rank() == leaver) return;
          call(transport, which, {.name = "allreduce", .timeout = 20s}, 70'000);
        });
        ADD_FAILURE() << "no error";
      } catch (const TransportError& error) {
        EXPECT_TRUE(contains(error.what(), "rank " + std::to_string(leaver) + " left"))
            << error.what();
      }
}

/// The error that a run of two ends with; rank 1's part is over before rank 0's begins to wait.
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

TEST_P(TransportFaults, WhoLeftALongTimeAgoIsNamedAtOnce) {
  const auto leave = [](Transport&) {};
  const auto in_a_channel_of_its_own = [](Transport& transport) {
    const auto channel = transport.channel();
    channel->receive({.name = "reducer", .timeout = 20s}, 1, 8).wait_synchronize();
  };
  const auto receive = [](Transport& transport) {
    transport.receive({.name = "reducer", .timeout = 20s}, 1, 8).wait_synchronize();
  };
  const auto send = [](Transport& transport) {
    for (int attempt = 0; attempt < 1000; ++attempt) {  // until it is known who left
      transport.send({.name = "reducer", .timeout = 20s}, 1, {}).wait_synchronize();
      transport.progress();
      std::this_thread::sleep_for(10ms);
    }
  };
  for (const Body& stayer : {Body(in_a_channel_of_its_own), Body(receive), Body(send)}) {
    const std::string error = error_after_leaving(GetParam(), leave, stayer);
    EXPECT_TRUE(contains(error, "reducer on rank 0: rank 1 left")) << error;
  }
}

TEST_P(TransportFaults, ALeftChannelIsNoticedThoughTheRankIsThere) {
  const std::string error = error_after_leaving(
      GetParam(),
      [](Transport& transport) {
        transport.channel().reset();
        while (true) transport.wait_activity(Clock::now() + 20s);  // until it is poisoned
      },
      [](Transport& transport) {
        transport.channel()->barrier({.name = "reducer", .timeout = 20s}).wait_synchronize();
      });
  EXPECT_TRUE(contains(error, "reducer on rank 0: rank 1 left")) << error;
}

TEST_P(TransportFaults, ReceiveAnyEndsWhenEverybodyLeft) {
  const std::string error = error_after_leaving(
      GetParam(), [](Transport&) {},
      [](Transport& transport) {
        if (!transport.traits().receive_any) throw TransportError("every other rank left");
        transport.receive_any({.name = "serve", .timeout = 20s}, 8).wait_synchronize();
      });
  EXPECT_TRUE(contains(error, "every other rank left")) << error;
}

// What was sent before leaving still arrives.
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
        EXPECT_TRUE(same_bytes(handle.received(0), pattern(100'000, 0, 1)));
      }
    });
}

TEST_P(TransportFaults, PoisonFromAnotherThreadEndsAWait) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    if (transport.rank() == 1) return;
    std::jthread watchdog([&] {
      std::this_thread::sleep_for(20ms);
      transport.poison("stopped by hand");
    });
    transport.barrier({.name = "barrier", .timeout = 20s}).wait_synchronize();
  });
  EXPECT_TRUE(contains(errors[0], "stopped by hand")) << errors[0];
}

// In a split, errors name ranks of the split and of the whole.
TEST_P(TransportFaults, ASplitNamesItsRanksTwice) {
  const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
    if (transport.rank() < 2) return;
    const auto pair = transport.split(std::vector<int>{2, 3});
    if (pair->rank() == 0) pair->barrier({.name = "pair", .timeout = 50ms}).wait_synchronize();
    std::this_thread::sleep_for(200ms);
    transport.progress();
  });
  EXPECT_TRUE(contains(errors[2], "no message from rank 1 of the split (3 of all)")) << errors[2];
  EXPECT_TRUE(contains(errors[3], "no message from rank 1 of the split (3 of all)")) << errors[3];
}

// Handles dropped while an error unwinds, with messages for them still on their way.
TEST_P(TransportFaults, HandlesMayBeDroppedWhileAnErrorUnwinds) {
  for (int round = 0; round < 10; ++round) {
    const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      std::vector<float> values(300'000);
      const auto send = pattern(200'000, transport.rank(), 0);
      Handle gather = transport.all_gather({.name = "gather", .tag = 1}, send, 200'000);
      Handle sum = transport.sum({.name = "sum", .tag = 2}, cut(values, even_counts(300'000, 3)));
      if (transport.rank() == 0) transport.poison("enough");
      transport.barrier({.name = "barrier", .tag = 3}).wait_synchronize();
    });
    for (const std::string& error : errors)
      EXPECT_TRUE(error.empty() || contains(error, "enough")) << error;
    EXPECT_NE(errors[0], "");
  }
}

}  // namespace
}  // namespace tersor::test
