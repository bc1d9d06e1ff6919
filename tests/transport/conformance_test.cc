// Transport conformance, for host memory and device memory: delivers bytes of any count between any
// number of ranks, with operations in any order. Separates channels and splits.
#include <algorithm>
#include <array>
#include <chrono>

#include "tests/transport/rank.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportConformance, ::testing::ValuesIn(fabrics()),
                         fabric_name);

TEST_P(TransportConformance, NumbersHostsByTheirLowestRanks) {
  on_all_ranks([](const Rank& rank) {
    const std::vector<int> hosts = rank.transport.hosts();
    ASSERT_EQ(hosts.size(), static_cast<std::size_t>(rank.ranks()));
    int next = 0;
    for (const int host : hosts) {
      EXPECT_GE(host, 0);
      EXPECT_LE(host, next);
      next += host == next;
    }
    EXPECT_EQ(rank.transport.channel()->hosts(), hosts);
  });
}

// Members of a split share a host if and only if they share a host in the parent transport.
TEST_P(TransportConformance, SplitsPreserveHostsOfMembers) {
  run(8, [](const Rank& rank) {
    const std::vector<int> members = {1, 4, 5, 7};
    const std::vector<int> whole = rank.transport.hosts();
    if (std::find(members.begin(), members.end(), rank.rank()) == members.end()) return;
    const std::vector<int> hosts = rank.transport.split(members)->hosts();
    ASSERT_EQ(hosts.size(), members.size());
    EXPECT_EQ(hosts.front(), 0);
    for (std::size_t one = 0; one < members.size(); ++one)
      for (std::size_t other = 0; other < members.size(); ++other)
        EXPECT_EQ(hosts[one] == hosts[other], whole[static_cast<std::size_t>(members[one])] ==
                                                  whole[static_cast<std::size_t>(members[other])]);
  });
}

TEST_P(TransportConformance, AllGatherDeliversBytesOfAllRanks) {
  on_all_ranks([](const Rank& rank) {
    for (const std::size_t bytes : rank.sizes()) {
      const RankBytes send(rank, pattern(bytes, rank.rank(), 0));
      Handle handle = rank.transport.all_gather(rank.operation(), send.span(), bytes);
      handle.wait_synchronize();
      rank.expect_all(handle, bytes, 0);
      EXPECT_TRUE(handle.received(rank.rank()).empty());
    }
  });
}

// Every pair has a different length, in most transports below the capacity. Some lengths are 0.
TEST_P(TransportConformance, AllToAllDeliversBytesOfEachPair) {
  const auto length = [](std::size_t bytes, int from, int to) {
    return bytes * static_cast<std::size_t>((from + 2 * to) % 4) / 3;
  };
  on_all_ranks([&](const Rank& rank) {
    const int own = rank.rank();
    for (const std::size_t bytes : rank.sizes()) {
      std::deque<RankBytes> sends;
      std::vector<ConstByteSpan> spans;
      std::vector<std::size_t> capacities;
      for (int peer = 0; peer < rank.ranks(); ++peer) {
        sends.emplace_back(rank, pattern(length(bytes, own, peer), own, peer));
        spans.push_back(sends.back().span());
        capacities.push_back(rank.queues() ? length(bytes, peer, own) : bytes);
      }
      Handle handle = rank.transport.all_to_all(rank.operation(), spans, capacities);
      handle.wait_synchronize();
      for (const int peer : rank.peers()) rank.expect(handle, peer, length(bytes, peer, own), own);
    }
  });
}

// An empty part may begin at the end of a buffer, at an address unknown to a device.
TEST_P(TransportConformance, EmptyMessagesMayHaveAnyAddress) {
  run(3, [](const Rank& rank) {
    const RankBytes send(rank, pattern(512, rank.rank(), 0));
    std::vector<ConstByteSpan> sends(3, send.span().last(0));
    sends[static_cast<std::size_t>(rank.at(1))] = send.span();
    std::vector<std::size_t> capacities(3, 0);
    capacities[static_cast<std::size_t>(rank.at(-1))] = 512;
    Handle handle = rank.transport.all_to_all(rank.operation(), sends, capacities);
    handle.wait_synchronize();
    rank.expect(handle, rank.at(-1), 512, 0);
  });
}

// Ranks with queues send in pairs and in turns, because a queue that waits for a message cannot
// send.
TEST_P(TransportConformance, SendMatchesReceive) {
  on_all_ranks([](const Rank& rank) {
    const int next = rank.queues() ? rank.rank() ^ 1 : rank.at(1);
    const int before = rank.queues() ? next : rank.at(-1);
    if (rank.ranks() == 1 || next >= rank.ranks()) return;
    const bool receives_first = rank.queues() && rank.rank() % 2 == 1;
    for (const std::size_t bytes : rank.sizes()) {
      const RankBytes send(rank, pattern(bytes, rank.rank(), next));
      const Operation operation = rank.operation();
      Handle sent, received;
      if (!receives_first) sent = rank.transport.send(operation, next, send.span());
      received = rank.transport.receive(operation, before, bytes + rank.spare());
      if (receives_first) sent = rank.transport.send(operation, next, send.span());
      received.wait_synchronize();
      sent.wait_synchronize();
      rank.expect(received, before, bytes, rank.rank());
    }
  });
}

TEST_P(TransportConformance, ReceiveAnyReceivesFromEachRankOnce) {
  on_all_ranks([](const Rank& rank) {
    if (!rank.transport.traits().receive_any || rank.ranks() == 1) return;
    const Operation operation = rank.operation();
    const RankBytes send(rank, pattern(1000, rank.rank(), 0));
    if (rank.rank() != 0) return rank.transport.send(operation, 0, send.span()).wait_synchronize();
    std::vector<int> sources;
    for (int message = 1; message < rank.ranks(); ++message) {
      Handle handle = rank.transport.receive_any(operation, 1000);
      handle.wait_synchronize();
      sources.push_back(handle.source());
      rank.expect(handle, sources.back(), 1000, 0);
    }
    std::sort(sources.begin(), sources.end());
    EXPECT_EQ(sources, rank.peers());
  });
}

TEST_P(TransportConformance, BarrierWaitsForLastRank) {
  on_all_ranks([](const Rank& rank) {
    const auto start = Clock::now();  // before the last rank can start its pause
    rank.transport.barrier(rank.operation()).wait_synchronize();
    rank.synchronize();
    if (rank.rank() == rank.ranks() - 1) std::this_thread::sleep_for(30ms);
    rank.transport.barrier(rank.operation()).wait_synchronize();
    rank.synchronize();
    EXPECT_GE(Clock::now() - start, 30ms);
  });
}

TEST_P(TransportConformance, SumsAndMaximaIncludeAllRanks) {
  on_all_ranks([](const Rank& rank) {
    for (const std::size_t count : {1u, 257u, 10'007u}) {
      RankBytes sums(rank, std::vector<float>(count, static_cast<float>(rank.rank() + 1)));
      RankBytes maxima(rank, std::vector<std::int32_t>(count, rank.rank() - 1));
      Handle sum = rank.transport.sum(rank.operation(), sums.parts(rank.ranks()));
      Handle maximum =
          rank.transport.maximum(rank.operation(), maxima.parts(rank.ranks(), Dtype::kI32));
      sum.wait_synchronize();
      maximum.wait_synchronize();
      const int all = rank.ranks();
      EXPECT_EQ(sums.read<float>(),
                std::vector<float>(count, static_cast<float>(all * (all + 1) / 2)));
      EXPECT_EQ(maxima.read<std::int32_t>(), std::vector<std::int32_t>(count, all - 2));
    }
  });
}

// Each rank starts six operations in a different order and waits in another order.
TEST_P(TransportConformance, OperationsMayStartInAnyOrder) {
  on_all_ranks([](const Rank& rank) {
    constexpr std::size_t kOperations = 6, kCount = 70'000;
    const auto own = rank.transport.traits().ordered ? 0 : static_cast<std::size_t>(rank.rank());
    const auto base = rank.transport.reserve_tags(kOperations);
    std::deque<RankBytes> memory;
    for (std::size_t index = 0; index < kOperations; ++index)
      if (index % 2 == 0)
        memory.emplace_back(rank, std::vector<float>(kCount, 1.0f));
      else
        memory.emplace_back(rank, pattern(5000, rank.rank(), static_cast<int>(index)));
    std::vector<Handle> handles(kOperations);
    for (std::size_t step = 0; step < kOperations; ++step) {
      const std::size_t index = (step + own) % kOperations;
      const Operation operation = rank.operation(base + static_cast<std::uint32_t>(index));
      handles[index] = index % 2 == 0
                           ? rank.transport.sum(operation, memory[index].parts(rank.ranks()))
                           : rank.transport.all_gather(operation, memory[index].span(), 5000);
    }
    for (std::size_t step = 0; step < kOperations; ++step)
      handles[(step * 5 + own) % kOperations].wait_synchronize();
    for (std::size_t index = 0; index < kOperations; index += 2)
      EXPECT_EQ(memory[index].read<float>().back(), static_cast<float>(rank.ranks()));
    for (std::size_t index = 1; index < kOperations; index += 2)
      rank.expect_all(handles[index], 5000, static_cast<int>(index));
  });
}

// Like an event loop: wait_activity, then test all pending operations.
TEST_P(TransportConformance, EventLoopCompletesAllOperations) {
  on_all_ranks([](const Rank& rank) {
    RankBytes values(rank, std::vector<float>(100'000, 2.0f));
    const RankBytes send(rank, pattern(3000, rank.rank(), 0));
    std::vector<Handle> handles;
    handles.push_back(rank.transport.sum(rank.operation(), values.parts(rank.ranks())));
    for (int index = 0; index < 4; ++index)
      handles.push_back(rank.transport.all_gather(rank.operation(), send.span(), 3000));
    std::size_t done = 0;
    while (done < handles.size()) {
      done = 0;
      for (Handle& handle : handles) done += handle.test();
      if (done < handles.size()) rank.transport.wait_activity(Clock::now() + 10s);
    }
    EXPECT_EQ(values.read<float>().front(), 2.0f * static_cast<float>(rank.ranks()));
  });
}

TEST_P(TransportConformance, ProgressAloneFinishesOperations) {
  on_all_ranks([](const Rank& rank) {
    const RankBytes send(rank, pattern(100, rank.rank(), 0));
    Handle handle = rank.transport.all_gather(rank.operation(), send.span(), 100);
    while (!handle.test()) rank.transport.progress();
    rank.expect_all(handle, 100, 0);
  });
}

TEST_P(TransportConformance, WaitActivityReturnsInTime) {
  run(1, [](const Rank& rank) {
    const auto start = Clock::now();
    rank.transport.wait_activity(start + 20ms);
    EXPECT_GE(Clock::now() - start, 0ms);
    EXPECT_LT(Clock::now() - start, 5s);
  });
}

TEST_P(TransportConformance, WakeEndsWaitInAnotherThread) {
  run(2, [](const Rank& rank) {
    if (!rank.transport.traits().any_thread) GTEST_SKIP() << "one thread only";
    const auto start = Clock::now();
    std::jthread trainer([&] {
      std::this_thread::sleep_for(20ms);
      rank.transport.wake();
    });
    rank.transport.wait_activity(start + 20s);
    EXPECT_LT(Clock::now() - start, 10s);
    trainer.join();
    rank.transport.wake();  // a wake before the wait is not lost
    rank.transport.wait_activity(Clock::now() + 20s);
    EXPECT_LT(Clock::now() - start, 10s);
  });
}

// Equal tags on both channels, started in opposite orders by odd and even ranks.
TEST_P(TransportConformance, ChannelsDoNotMixMessages) {
  on_all_ranks([](const Rank& rank) {
    const auto first = rank.transport.channel();
    const auto second = rank.transport.channel();
    EXPECT_EQ(first->rank(), rank.rank());
    const std::array<Transport*, 3> channels = {&rank.transport, first.get(), second.get()};
    std::array<Handle, 3> handles;
    std::deque<RankBytes> sends;
    for (int step = 0; step < 3; ++step) {
      const int which = rank.queues() || rank.rank() % 2 == 0 ? step : 2 - step;
      const auto index = static_cast<std::size_t>(which);
      const RankBytes& send = sends.emplace_back(rank, pattern(999, rank.rank(), which));
      handles[index] = channels[index]->all_gather(rank.operation(5), send.span(), 999);
    }
    for (int which = 0; which < 3; ++which) {
      Handle& handle = handles[static_cast<std::size_t>(which)];
      handle.wait_synchronize();
      rank.expect_all(handle, 999, which);
    }
  });
}

TEST_P(TransportConformance, EachThreadMayUseItsChannel) {
  run(3, [this](const Rank& rank) {
    if (!rank.transport.traits().any_thread) GTEST_SKIP() << "one thread only";
    if (rank.queues()) GTEST_SKIP() << "another thread has another device";
    const auto own = rank.transport.channel();
    const auto talk = [](const Rank& on, std::size_t bytes) {
      for (int round = 0; round < 50; ++round) {
        const RankBytes send(on, pattern(bytes, on.rank(), round));
        Handle handle = on.transport.all_gather(on.operation(), send.span(), bytes);
        handle.wait_synchronize();
        on.expect_all(handle, bytes, round);
      }
    };
    std::jthread background([&] { talk(Rank(*own, GetParam()), 30'000); });
    talk(rank, 500);
  });
}

/// The sum over a group of ranks.
float total(Transport& group, const Fabric& fabric, float own) {
  const Rank rank(group, fabric);
  RankBytes values(rank, std::vector<float>(10'000, own));
  group.sum(rank.operation(), values.parts(group.ranks())).wait_synchronize();
  return values.read<float>().back();
}

TEST_P(TransportConformance, SplitsRunSideBySide) {
  run(8, [this](const Rank& rank) {
    // Odd and even ranks, then halves of the splits, with operations of all ranks in between.
    std::vector<int> members;
    for (int member = rank.rank() % 2; member < 8; member += 2) members.push_back(member);
    const auto parity = rank.transport.split(members);
    ASSERT_EQ(parity->ranks(), 4);
    ASSERT_EQ(parity->rank(), rank.rank() / 2);
    const bool upper = parity->rank() >= 2;
    const auto pair = parity->split(upper ? std::vector<int>{2, 3} : std::vector<int>{0, 1});
    const auto everybody = rank.transport.channel();
    const auto own = static_cast<float>(rank.rank());
    const auto lowest = static_cast<float>(rank.rank() % 2 + (upper ? 4 : 0));
    EXPECT_EQ(total(*pair, GetParam(), own), 2 * lowest + 2);
    EXPECT_EQ(total(*parity, GetParam(), own), rank.rank() % 2 == 0 ? 12 : 16);
    EXPECT_EQ(total(*everybody, GetParam(), own), 28);
  });
}

// Only some ranks split. Later collectives of all ranks still match.
TEST_P(TransportConformance, PartialSplitDoesNotDisturbOtherRanks) {
  run(4, [this](const Rank& rank) {
    std::unique_ptr<Transport> some;
    if (rank.rank() < 2) some = rank.transport.split(std::vector<int>{0, 1});
    const auto channel = rank.transport.channel();
    if (some) EXPECT_EQ(total(*some, GetParam(), 1.0f), 2.0f);
    EXPECT_EQ(total(*channel, GetParam(), 1.0f), 4.0f);
  });
}

TEST_P(TransportConformance, HandleKeepsAlignedReceivedBytes) {
  run(3, [](const Rank& rank) {
    std::vector<Handle> kept;
    for (int round = 0; round < 20; ++round) {
      const RankBytes send(rank, pattern(777, rank.rank(), round));
      kept.push_back(rank.transport.all_gather(rank.operation(), send.span(), 777));
      kept.back().wait_synchronize();
    }
    for (int round = 0; round < 20; ++round)
      for (const int peer : rank.peers()) {
        const Handle& handle = kept[static_cast<std::size_t>(round)];
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(handle.received(peer).data()) % 16, 0u);
        rank.expect(handle, peer, 777, round);
      }
  });
}

TEST_P(TransportConformance, CountsTransferredBytesExactly) {
  const std::size_t head = GetParam().head_bytes;
  on_all_ranks([&](const Rank& rank) {
    if (rank.queues()) return;  // NCCL adds headers of its own
    const auto others = static_cast<std::uint64_t>(rank.ranks()) - 1;
    const auto own = rank.transport.channel();
    const RankBytes send(rank, pattern(1001, rank.rank(), 0));
    own->all_gather(rank.operation(1), send.span(), 5000).wait_synchronize();
    EXPECT_EQ(own->counters().sent_bytes, others * (1001 + head));
    EXPECT_EQ(own->counters().received_bytes, others * (1001 + head));
    EXPECT_EQ(own->counters().sent_messages, others);
    own->barrier(rank.operation(2)).wait_synchronize();
    EXPECT_EQ(own->counters().sent_bytes, others * (1001 + 2 * head));
    EXPECT_EQ(rank.transport.counters().sent_bytes, 0u);
  });
}

TEST_P(TransportConformance, SumIsBandwidthOptimal) {
  run(4, [this](const Rank& rank) {
    if (rank.queues()) GTEST_SKIP() << "NCCL chooses the messages";
    RankBytes values(rank, std::vector<float>(4 * 250'000, 1.0f));
    rank.transport.sum(rank.operation(), values.parts(4)).wait_synchronize();
    const TransferCounters counters = rank.transport.counters();
    EXPECT_EQ(counters.sent_bytes,
              6 * 250'000 * sizeof(float) + GetParam().head_bytes * counters.sent_messages);
    EXPECT_EQ(counters.received_bytes, counters.sent_bytes);
  });
}

TEST_P(TransportConformance, RejectsInvalidArguments) {
  run(2, [](const Rank& rank) {
    const Operation operation = rank.operation();
    const std::vector<ConstByteSpan> sends(3);
    const std::vector<std::size_t> capacities(2);
    Transport& transport = rank.transport;
    EXPECT_THROW(transport.all_to_all(operation, sends, capacities), InvalidArgumentError);
    EXPECT_THROW(transport.send(operation, 2, {}), InvalidArgumentError);
    EXPECT_THROW(transport.send(operation, rank.rank(), {}), InvalidArgumentError);
    EXPECT_THROW(transport.receive(operation, -1, 8), InvalidArgumentError);
    EXPECT_THROW(transport.split(std::vector<int>{1, 0}), InvalidArgumentError);
    EXPECT_THROW(transport.split(std::vector<int>{0, 2}), InvalidArgumentError);
    EXPECT_THROW(transport.split(std::vector<int>{1 - rank.rank()}), InvalidArgumentError);
    RankBytes floats(rank, std::vector<float>(4)), halves(rank, std::vector<float>(2));
    const ValueSpan one = floats.parts(1).front();
    const std::vector<ValueSpan> mixed = {one, halves.parts(1, Dtype::kBf16).front()};
    EXPECT_THROW(transport.sum(operation, mixed), InvalidArgumentError);
    EXPECT_THROW(transport.sum(operation, std::vector<ValueSpan>{one}), InvalidArgumentError);
    transport.barrier(operation).wait_synchronize();  // the transport is not aborted
  });
}

}  // namespace
}  // namespace tersor::test
