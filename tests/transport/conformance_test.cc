// Transport conformance: delivers bytes of any count between any number of ranks, with operations
// in any order. Separates channels and splits.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>

#include "tests/transport/late_wire.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::size_t, 6> kSizes = {0, 1, 255, 257, 65'537, 1 << 20};

class TransportConformance : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportConformance, ::testing::ValuesIn(fabrics()),
                         fabric_name);
INSTANTIATE_TEST_SUITE_P(Late, TransportConformance, ::testing::Values(late_fabric()), fabric_name);

// Every rank exists once: received rank numbers must match.
TEST_P(TransportConformance, KnowsItsRanks) {
  on_all_ranks([](Transport& transport) {
    const auto own = static_cast<std::byte>(transport.rank());
    Handle handle = transport.all_gather(operation_of(transport), {&own, 1}, 1);
    handle.wait_synchronize();
    for (const int rank : peers_of(transport))
      EXPECT_EQ(handle.received(rank).front(), static_cast<std::byte>(rank));
  });
}

TEST_P(TransportConformance, NumbersHostsByTheirLowestRanks) {
  on_all_ranks([](Transport& transport) {
    const std::vector<int> hosts = transport.hosts();
    ASSERT_EQ(hosts.size(), static_cast<std::size_t>(transport.ranks()));
    int next = 0;
    for (const int host : hosts) {
      EXPECT_GE(host, 0);
      EXPECT_LE(host, next);
      next += host == next;
    }
    EXPECT_EQ(transport.channel()->hosts(), hosts);
  });
}

// Members of a split share a host if and only if they share a host in the parent transport.
TEST_P(TransportConformance, SplitsKnowTheHostsOfTheirMembers) {
  run(8, [](Transport& transport) {
    const std::vector<int> members = {1, 4, 5, 7};
    const std::vector<int> whole = transport.hosts();
    if (std::find(members.begin(), members.end(), transport.rank()) == members.end()) return;
    const std::vector<int> hosts = transport.split(members)->hosts();
    ASSERT_EQ(hosts.size(), members.size());
    EXPECT_EQ(hosts.front(), 0);
    for (std::size_t one = 0; one < members.size(); ++one)
      for (std::size_t other = 0; other < members.size(); ++other)
        EXPECT_EQ(hosts[one] == hosts[other], whole[static_cast<std::size_t>(members[one])] ==
                                                  whole[static_cast<std::size_t>(members[other])]);
  });
}

TEST_P(TransportConformance, AllGatherBringsEverybodysBytes) {
  on_all_ranks([](Transport& transport) {
    for (const std::size_t bytes : kSizes) {
      const auto send = pattern(bytes, transport.rank(), 0);
      Handle handle = transport.all_gather(operation_of(transport), send, bytes);
      handle.wait_synchronize();
      expect_patterns(handle, transport, bytes, 0);
      EXPECT_TRUE(handle.received(transport.rank()).empty());
    }
  });
}

// Every pair has a different length below the capacity. Some lengths are 0.
TEST_P(TransportConformance, AllToAllBringsEachPairItsOwn) {
  const auto length = [](std::size_t bytes, int from, int to) {
    return bytes * static_cast<std::size_t>((from + 2 * to) % 4) / 3;
  };
  on_all_ranks([&](Transport& transport) {
    const int own = transport.rank();
    for (const std::size_t bytes : kSizes) {
      std::vector<std::vector<std::byte>> sends;
      for (int rank = 0; rank < transport.ranks(); ++rank)
        sends.push_back(pattern(length(bytes, own, rank), own, rank));
      const std::vector<ConstByteSpan> spans(sends.begin(), sends.end());
      const std::vector<std::size_t> capacities(sends.size(), bytes);
      Handle handle = transport.all_to_all(operation_of(transport), spans, capacities);
      handle.wait_synchronize();
      for (const int rank : peers_of(transport))
        EXPECT_TRUE(
            equal_bytes(handle.received(rank), pattern(length(bytes, rank, own), rank, own)))
            << bytes << " bytes from " << rank << " to " << own;
    }
  });
}

TEST_P(TransportConformance, SendMeetsReceive) {
  on_all_ranks([](Transport& transport) {
    if (transport.ranks() == 1) return;
    const int next = (transport.rank() + 1) % transport.ranks();
    const int before = (transport.rank() + transport.ranks() - 1) % transport.ranks();
    for (const std::size_t bytes : kSizes) {
      const auto send = pattern(bytes, transport.rank(), next);
      const Operation operation = operation_of(transport);
      Handle sent = transport.send(operation, next, send);
      Handle received = transport.receive(operation, before, bytes + 7);
      received.wait_synchronize();
      sent.wait_synchronize();
      EXPECT_TRUE(equal_bytes(received.received(before), pattern(bytes, before, transport.rank())));
    }
  });
}

TEST_P(TransportConformance, ReceiveAnyTakesEveryRankOnce) {
  on_all_ranks([](Transport& transport) {
    if (!transport.traits().receive_any || transport.ranks() == 1) return;
    const Operation operation = operation_of(transport);
    if (transport.rank() != 0) {
      transport.send(operation, 0, pattern(1000, transport.rank(), 0)).wait_synchronize();
      return;
    }
    std::vector<int> sources;
    for (int message = 1; message < transport.ranks(); ++message) {
      Handle handle = transport.receive_any(operation, 1000);
      handle.wait_synchronize();
      sources.push_back(handle.source());
      EXPECT_TRUE(equal_bytes(handle.received(sources.back()), pattern(1000, sources.back(), 0)));
    }
    std::sort(sources.begin(), sources.end());
    for (int rank = 1; rank < transport.ranks(); ++rank)
      EXPECT_EQ(sources[static_cast<std::size_t>(rank) - 1], rank);
  });
}

TEST_P(TransportConformance, BarrierHoldsUntilTheLastHasCome) {
  on_all_ranks([](Transport& transport) {
    const auto start = Clock::now();  // before the last rank can start its pause
    transport.barrier(operation_of(transport)).wait_synchronize();
    if (transport.rank() == transport.ranks() - 1) std::this_thread::sleep_for(30ms);
    transport.barrier(operation_of(transport)).wait_synchronize();
    EXPECT_GE(Clock::now() - start, 30ms);
  });
}

// Each rank starts six operations in a different order and waits in another order.
TEST_P(TransportConformance, OperationsMayStartInAnyOrder) {
  on_all_ranks([](Transport& transport) {
    constexpr std::size_t kOperations = 6;
    constexpr std::size_t kCount = 70'000;
    const auto base = transport.reserve_tags(kOperations);
    std::vector<std::vector<float>> values(kOperations, std::vector<float>(kCount, 1.0f));
    std::vector<std::vector<std::byte>> sends;
    std::vector<Handle> handles(kOperations);
    for (std::size_t index = 0; index < kOperations; ++index)
      sends.push_back(pattern(5000, transport.rank(), static_cast<int>(index)));
    const auto start = [&](std::size_t index) {
      const Operation operation{.name = "test", .tag = base + static_cast<std::uint32_t>(index)};
      handles[index] = index % 2 == 0
                           ? transport.sum(operation, cut(ValueSpan(values[index]),
                                                          even_counts(kCount, transport.ranks())))
                           : transport.all_gather(operation, sends[index], 5000);
    };
    for (std::size_t step = 0; step < kOperations; ++step)
      start((step + static_cast<std::size_t>(transport.rank())) % kOperations);
    for (std::size_t step = 0; step < kOperations; ++step)
      handles[(step * 5 + static_cast<std::size_t>(transport.rank())) % kOperations]
          .wait_synchronize();
    for (std::size_t index = 0; index < kOperations; index += 2)
      EXPECT_EQ(values[index][kCount - 1], static_cast<float>(transport.ranks()));
    for (std::size_t index = 1; index < kOperations; index += 2)
      expect_patterns(handles[index], transport, 5000, static_cast<int>(index));
  });
}

// Like an event loop: wait_activity, then test all pending operations.
TEST_P(TransportConformance, AnEventLoopNeedsNoOtherWait) {
  on_all_ranks([](Transport& transport) {
    std::vector<float> values(100'000, 2.0f);
    const auto send = pattern(3000, transport.rank(), 0);
    std::vector<Handle> handles;
    handles.push_back(transport.sum(operation_of(transport),
                                    cut(values, even_counts(values.size(), transport.ranks()))));
    for (int index = 0; index < 4; ++index)
      handles.push_back(transport.all_gather(operation_of(transport), send, 3000));
    std::size_t done = 0;
    while (done < handles.size()) {
      done = 0;
      for (Handle& handle : handles) done += handle.test();
      if (done < handles.size()) transport.wait_activity(Clock::now() + 10s);
    }
    EXPECT_EQ(values.front(), 2.0f * static_cast<float>(transport.ranks()));
  });
}

TEST_P(TransportConformance, ProgressAloneFinishesOperations) {
  on_all_ranks([](Transport& transport) {
    const auto send = pattern(100, transport.rank(), 0);
    Handle handle = transport.all_gather(operation_of(transport), send, 100);
    while (!handle.test()) transport.progress();
    expect_patterns(handle, transport, 100, 0);
  });
}

TEST_P(TransportConformance, WaitActivityEndsInTime) {
  run(1, [](Transport& transport) {
    const auto start = Clock::now();
    transport.wait_activity(start + 20ms);
    EXPECT_GE(Clock::now() - start, 0ms);
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST_P(TransportConformance, WakeEndsTheWaitingOfAnotherThread) {
  run(2, [](Transport& transport) {
    if (!transport.traits().any_thread) GTEST_SKIP() << "one thread only";
    const auto start = Clock::now();
    std::jthread trainer([&] {
      std::this_thread::sleep_for(20ms);
      transport.wake();
    });
    transport.wait_activity(start + 20s);
    EXPECT_LT(Clock::now() - start, 10s);
    trainer.join();
    transport.wake();  // a wake before the wait is not lost
    transport.wait_activity(Clock::now() + 20s);
    EXPECT_LT(Clock::now() - start, 10s);
  });
}

// Equal tags on both channels, started in opposite orders by odd and even ranks.
TEST_P(TransportConformance, ChannelsDoNotMeet) {
  on_all_ranks([](Transport& transport) {
    const auto first = transport.channel();
    const auto second = transport.channel();
    EXPECT_EQ(first->rank(), transport.rank());
    const std::array<Transport*, 3> channels = {&transport, first.get(), second.get()};
    std::array<Handle, 3> handles;
    std::array<std::vector<std::byte>, 3> sends;
    for (int step = 0; step < 3; ++step) {
      const int which = transport.rank() % 2 == 0 ? step : 2 - step;
      const auto index = static_cast<std::size_t>(which);
      sends[index] = pattern(999, transport.rank(), which);
      handles[index] = channels[index]->all_gather({.name = "test", .tag = 5}, sends[index], 999);
    }
    for (int which = 0; which < 3; ++which) {
      Handle& handle = handles[static_cast<std::size_t>(which)];
      handle.wait_synchronize();
      expect_patterns(handle, transport, 999, which);
    }
  });
}

TEST_P(TransportConformance, ChannelsMayBeUsedFromThreadsOfTheirOwn) {
  run(3, [](Transport& transport) {
    if (!transport.traits().any_thread) GTEST_SKIP() << "one thread only";
    const auto own = transport.channel();
    const auto talk = [](Transport& channel, std::size_t bytes) {
      for (int round = 0; round < 50; ++round) {
        const auto send = pattern(bytes, channel.rank(), round);
        Handle handle = channel.all_gather(operation_of(channel), send, bytes);
        handle.wait_synchronize();
        expect_patterns(handle, channel, bytes, round);
      }
    };
    std::jthread background([&] { talk(*own, 30'000); });
    talk(transport, 500);
  });
}

TEST_P(TransportConformance, SplitsRunSideBySide) {
  run(8, [](Transport& transport) {
    // Odd and even ranks, then halves of the splits, with operations of all ranks in between.
    std::vector<int> members;
    for (int rank = transport.rank() % 2; rank < 8; rank += 2) members.push_back(rank);
    const auto parity = transport.split(members);
    ASSERT_EQ(parity->ranks(), 4);
    ASSERT_EQ(parity->rank(), transport.rank() / 2);
    const bool upper = parity->rank() >= 2;
    const auto pair = parity->split(upper ? std::vector<int>{2, 3} : std::vector<int>{0, 1});
    const auto everybody = transport.channel();
    const auto total = [](Transport& group, float own) {
      std::vector<float> values(10'000, own);
      group.sum(operation_of(group), cut(values, even_counts(values.size(), group.ranks())))
          .wait_synchronize();
      return values.back();
    };
    const auto own = static_cast<float>(transport.rank());
    const auto lowest = static_cast<float>(transport.rank() % 2 + (upper ? 4 : 0));
    EXPECT_EQ(total(*pair, own), 2 * lowest + 2);
    EXPECT_EQ(total(*parity, own), transport.rank() % 2 == 0 ? 12 : 16);
    EXPECT_EQ(total(*everybody, own), 28);
  });
}

// Only some ranks split. Later collectives of all ranks still match.
TEST_P(TransportConformance, ASplitOfSomeDoesNotDisturbTheRest) {
  run(4, [](Transport& transport) {
    std::unique_ptr<Transport> some;
    if (transport.rank() < 2) some = transport.split(std::vector<int>{0, 1});
    const auto channel = transport.channel();
    const auto send = pattern(64, transport.rank(), 0);
    if (some) some->barrier(operation_of(*some)).wait_synchronize();
    Handle handle = channel->all_gather(operation_of(*channel), send, 64);
    handle.wait_synchronize();
    expect_patterns(handle, transport, 64, 0);
  });
}

TEST_P(TransportConformance, ReceivedBytesAreAlignedAndLiveAsLongAsTheHandle) {
  run(3, [](Transport& transport) {
    std::vector<Handle> kept;
    for (int round = 0; round < 20; ++round) {
      const auto send = pattern(777, transport.rank(), round);
      kept.push_back(transport.all_gather(operation_of(transport), send, 777));
      kept.back().wait_synchronize();
    }
    for (int round = 0; round < 20; ++round)
      for (const int rank : peers_of(transport)) {
        const ConstByteSpan bytes = kept[static_cast<std::size_t>(round)].received(rank);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 16, 0u);
        EXPECT_TRUE(equal_bytes(bytes, pattern(777, rank, round)));
      }
  });
}

TEST_P(TransportConformance, CountsExactlyWhatItMoved) {
  const std::size_t head = GetParam().head_bytes;
  on_all_ranks([&](Transport& transport) {
    const auto others = static_cast<std::uint64_t>(transport.ranks()) - 1;
    const auto own = transport.channel();
    const auto send = pattern(1001, transport.rank(), 0);
    own->all_gather(operation_of(*own), send, 5000).wait_synchronize();
    EXPECT_EQ(own->counters().sent_bytes, others * (1001 + head));
    EXPECT_EQ(own->counters().received_bytes, others * (1001 + head));
    EXPECT_EQ(own->counters().sent_messages, others);
    own->barrier(operation_of(*own)).wait_synchronize();
    EXPECT_EQ(own->counters().sent_bytes, others * (1001 + 2 * head));
    EXPECT_EQ(transport.counters().sent_bytes, 0u);
  });
}

TEST_P(TransportConformance, ASumMovesTwoParts) {
  run(4, [this](Transport& transport) {
    constexpr std::size_t kCount = 4 * 250'000;
    std::vector<float> values(kCount, 1.0f);
    transport.sum(operation_of(transport), cut(values, even_counts(kCount, 4))).wait_synchronize();
    const TransferCounters counters = transport.counters();
    EXPECT_EQ(counters.sent_bytes,
              6 * 250'000 * sizeof(float) + GetParam().head_bytes * counters.sent_messages);
    EXPECT_EQ(counters.received_bytes, counters.sent_bytes);
  });
}

TEST_P(TransportConformance, RefusesWhatCannotBe) {
  run(2, [](Transport& transport) {
    const Operation operation{.name = "test"};
    const std::vector<ConstByteSpan> sends(3);
    const std::vector<std::size_t> capacities(2);
    EXPECT_THROW(transport.all_to_all(operation, sends, capacities), InvalidArgumentError);
    EXPECT_THROW(transport.send(operation, 2, {}), InvalidArgumentError);
    EXPECT_THROW(transport.send(operation, transport.rank(), {}), InvalidArgumentError);
    EXPECT_THROW(transport.receive(operation, -1, 8), InvalidArgumentError);
    EXPECT_THROW(transport.split(std::vector<int>{1, 0}), InvalidArgumentError);
    EXPECT_THROW(transport.split(std::vector<int>{0, 2}), InvalidArgumentError);
    EXPECT_THROW(transport.split(std::vector<int>{1 - transport.rank()}), InvalidArgumentError);
    std::vector<float> floats(4);
    std::vector<Bf16> halves(4);
    const std::vector<ValueSpan> mixed = {floats, halves};
    EXPECT_THROW(transport.sum(operation, mixed), InvalidArgumentError);
    EXPECT_THROW(transport.sum(operation, std::vector<ValueSpan>{floats}), InvalidArgumentError);
    transport.barrier(operation).wait_synchronize();  // the transport is not poisoned
  });
}

}  // namespace
}  // namespace tersor::test
