// Transport conformance on device memory over the NCCL replacement: received bytes and sums are
// correct for every execution order of the device.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {
namespace {

constexpr std::size_t kBytes[] = {0, 1, 255, 256, 10'007};

std::vector<int> peers_of(const Transport& transport) {
  std::vector<int> peers;
  for (int rank = 0; rank < transport.ranks(); ++rank)
    if (rank != transport.rank()) peers.push_back(rank);
  return peers;
}

void expect_patterns(const NcclRank& rank, const Handle& handle, std::size_t bytes, int to) {
  for (const int peer : peers_of(rank.transport))
    EXPECT_EQ(fetch(handle.received(peer), rank.stream), pattern(bytes, peer, to))
        << bytes << " bytes from " << peer;
}

TEST(NcclTransportConformance, AllGatherBringsEverybodysBytes) {
  on_all_nccl_ranks([](NcclRank& rank) {
    for (const std::size_t bytes : kBytes) {
      DeviceBytes send(bytes);
      send.fill(pattern(bytes, rank.rank(), 0), rank.stream);
      Handle handle = rank.transport.all_gather(rank.operation(), send.span(), bytes);
      handle.wait_synchronize();
      expect_patterns(rank, handle, bytes, 0);
      EXPECT_TRUE(handle.received(rank.rank()).empty());
    }
  });
}

/// A different number of bytes for each pair.
std::size_t bytes_between(std::size_t bytes, int from, int to) {
  return bytes * static_cast<std::size_t>((from + 2 * to) % 4) / 3;
}

TEST(NcclTransportConformance, AllToAllBringsEachPairItsOwn) {
  on_all_nccl_ranks([](NcclRank& rank) {
    for (const std::size_t bytes : kBytes) {
      std::vector<std::unique_ptr<DeviceBytes>> memory;
      std::vector<ConstByteSpan> sends;
      std::vector<std::size_t> capacities;
      for (int peer = 0; peer < rank.ranks(); ++peer) {
        const std::size_t own = bytes_between(bytes, rank.rank(), peer);
        memory.push_back(std::make_unique<DeviceBytes>(own));
        memory.back()->fill(pattern(own, rank.rank(), peer), rank.stream);
        sends.push_back(memory.back()->span());
        capacities.push_back(bytes_between(bytes, peer, rank.rank()));
      }
      Handle handle = rank.transport.all_to_all(rank.operation(), sends, capacities);
      handle.wait_synchronize();
      for (const int peer : peers_of(rank.transport))
        EXPECT_EQ(fetch(handle.received(peer), rank.stream),
                  pattern(bytes_between(bytes, peer, rank.rank()), peer, rank.rank()));
    }
  });
}

// An empty part may begin at the end of a buffer, at an address unknown to the device.
TEST(NcclTransportConformance, EmptyMessagesMayBeginAnywhere) {
  on_nccl(3, [](NcclRank& rank) {
    DeviceBytes send(512);
    send.fill(pattern(512, rank.rank(), 0), rank.stream);
    const ConstByteSpan behind(send.span().data() + 512, 0);
    const int next = (rank.rank() + 1) % 3, last = (rank.rank() + 2) % 3;
    std::vector<ConstByteSpan> sends(3, behind);
    sends[static_cast<std::size_t>(next)] = send.span();
    std::vector<std::size_t> capacities(3, 0);
    capacities[static_cast<std::size_t>(last)] = 512;
    Handle handle = rank.transport.all_to_all(rank.operation(), sends, capacities);
    handle.wait_synchronize();
    EXPECT_EQ(fetch(handle.received(last), rank.stream), pattern(512, last, 0));
  });
}

TEST(NcclTransportConformance, EvenRanksSendToOddOnes) {
  on_all_nccl_ranks([](NcclRank& rank) {
    const int peer = rank.rank() ^ 1;
    if (peer >= rank.ranks()) return;
    DeviceBytes bytes(1000);
    bytes.fill(pattern(1000, rank.rank(), peer), rank.stream);
    Handle handle = rank.rank() % 2 == 0 ? rank.transport.send(rank.operation(), peer, bytes.span())
                                         : rank.transport.receive(rank.operation(), peer, 1000);
    handle.wait_synchronize();
    if (rank.rank() % 2 != 0)
      EXPECT_EQ(fetch(handle.received(peer), rank.stream), pattern(1000, peer, rank.rank()));
  });
}

std::vector<ValueSpan> cut(const ValueSpan& values, int ranks) {
  std::vector<ValueSpan> parts;
  const auto count = static_cast<std::size_t>(ranks);
  for (std::size_t i = 0; i < count; ++i)
    parts.push_back(values.subspan(values.count() * i / count,
                                   values.count() * (i + 1) / count - values.count() * i / count));
  return parts;
}

TEST(NcclTransportConformance, SumsAndMaximaAreOfAllRanks) {
  on_all_nccl_ranks([](NcclRank& rank) {
    for (const std::size_t count : {1u, 257u, 10'007u}) {
      DeviceBytes sums(4 * count), maxima(4 * count);
      sums.fill(std::vector<float>(count, static_cast<float>(rank.rank() + 1)), rank.stream);
      maxima.fill(std::vector<std::int32_t>(count, rank.rank() - 1), rank.stream);
      Handle sum = rank.transport.sum(rank.operation("sum"), cut(sums.values(), rank.ranks()));
      Handle maximum = rank.transport.maximum(rank.operation("maximum"),
                                              cut(maxima.values(Dtype::kI32), rank.ranks()));
      sum.wait_synchronize();
      maximum.wait_synchronize();
      const int all = rank.ranks();
      EXPECT_EQ(fetch<float>(sums.span(), rank.stream),
                std::vector<float>(count, static_cast<float>(all * (all + 1) / 2)));
      EXPECT_EQ(fetch<std::int32_t>(maxima.span(), rank.stream),
                std::vector<std::int32_t>(count, all - 2));
    }
  });
}

// Adjacent parts are one sum in any order. Separate parts are two sums.
TEST(NcclTransportConformance, PartsThatTouchAreOneSum) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    DeviceBytes one(4096);
    one.fill(std::vector<float>(1024, 1.0f), rank.stream);
    const std::vector<ValueSpan> parts = cut(one.values(), 2);
    const std::vector<ValueSpan> turned = {parts[1], parts[0]};
    rank.transport.sum(rank.operation(), turned).wait_synchronize();
    const std::vector<ValueSpan> apart = {parts[1], parts[0].subspan(0, 100)};
    rank.transport.sum(rank.operation(), apart).wait_synchronize();
    std::vector<float> expected(1024, 4.0f);
    std::fill(expected.begin() + 100, expected.begin() + 512, 2.0f);
    EXPECT_EQ(fetch<float>(one.span(), rank.stream), expected);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
  EXPECT_EQ(nccl.calls("ncclAllReduce"), 2 * (1 + 2));
}

TEST(NcclTransportConformance, OperationsOfOneCollectiveOverlapInABracket) {
  on_all_nccl_ranks([](NcclRank& rank) {
    constexpr std::size_t kChunks = 4, kChunkBytes = 5000;
    for (int round = 0; round < 3; ++round) {
      DeviceBytes send(kChunks * kChunkBytes);
      send.fill(pattern(kChunks * kChunkBytes, rank.rank(), round), rank.stream);
      const Operation operation = rank.operation("chunks");
      rank.transport.begin(operation);
      std::vector<Handle> handles;
      for (std::size_t chunk = 0; chunk < kChunks; ++chunk)
        handles.push_back(rank.transport.all_gather(
            operation, send.span().subspan(chunk * kChunkBytes, kChunkBytes), kChunkBytes));
      for (Handle& handle : handles) EXPECT_TRUE(handle.test());
      rank.transport.end(operation);
      for (std::size_t chunk = 0; chunk < kChunks; ++chunk)
        for (const int peer : peers_of(rank.transport)) {
          const auto whole = pattern(kChunks * kChunkBytes, peer, round);
          const auto first = whole.begin() + static_cast<std::ptrdiff_t>(chunk * kChunkBytes);
          EXPECT_EQ(fetch(handles[chunk].received(peer), rank.stream),
                    std::vector<std::byte>(first, first + kChunkBytes));
        }
    }
  });
}

// Work on a second stream runs after the first, although neither stream is the transport's.
TEST(NcclTransportConformance, BracketsKeepTheirOrderAcrossStreams) {
  on_all_nccl_ranks([](NcclRank& rank) {
    const Stream second;
    DeviceBytes values(4000);
    values.fill(std::vector<float>(1000, 1.0f), rank.stream);
    Operation operation = rank.operation();
    operation.in_order = true;
    const std::vector<ValueSpan> parts = cut(values.values(), rank.ranks());
    rank.transport.sum(operation, parts).wait_synchronize();
    operation.stream = second.view();
    rank.transport.sum(operation, parts).wait_synchronize();
    const auto all = static_cast<float>(rank.ranks());
    EXPECT_EQ(fetch<float>(values.span(), second.view()), std::vector<float>(1000, all * all));
  });
}

// The first stream must read a block before the second stream's receive reuses the block.
TEST(NcclTransportConformance, WhatAStreamReadsIsNotOverwrittenForAnother) {
  on_nccl(2, [](NcclRank& rank) {
    constexpr std::size_t kBytes = 1000;
    const Stream second;
    const int peer = 1 - rank.rank();
    DeviceBytes one(kBytes), other(kBytes), copy(kBytes);
    one.fill(pattern(kBytes, rank.rank(), 1), rank.stream);
    other.fill(pattern(kBytes, rank.rank(), 2), second.view());
    Operation operation = rank.operation();
    {
      Handle handle = rank.transport.all_gather(operation, one.span(), kBytes);
      handle.wait_synchronize();
      const auto rest = [] { std::this_thread::sleep_for(std::chrono::milliseconds(200)); };
      ptx::queue_on(rank.stream.handle, rest, false);
      kernels::copy_bytes(copy.span().data(), handle.received(peer).data(), kBytes, rank.stream);
    }
    operation.stream = second.view();
    Handle handle = rank.transport.all_gather(operation, other.span(), kBytes);
    handle.wait_synchronize();
    EXPECT_EQ(fetch(handle.received(peer), second.view()), pattern(kBytes, peer, 2));
    EXPECT_EQ(fetch(copy.span(), rank.stream), pattern(kBytes, peer, 1));
  });
}

TEST(NcclTransportConformance, InOrderNeedsNoSecondStream) {
  on_all_nccl_ranks([](NcclRank& rank) {
    DeviceBytes send(3000);
    send.fill(pattern(3000, rank.rank(), 1), rank.stream);
    Operation operation = rank.operation();
    operation.in_order = true;
    Handle handle = rank.transport.all_gather(operation, send.span(), 3000);
    handle.wait_synchronize();
    expect_patterns(rank, handle, 3000, 1);
  });
}

TEST(NcclTransportConformance, HostMemoryIsForSmallMessages) {
  on_all_nccl_ranks([](NcclRank& rank) {
    for (const std::size_t bytes : {0u, 1u, 1000u}) {
      const auto own = pattern(bytes, rank.rank(), 0);
      const Operation operation{.name = "control", .timeout = std::chrono::seconds(20)};
      Handle handle = rank.transport.all_gather(operation, own, bytes + 9);
      handle.wait_synchronize();
      for (const int peer : peers_of(rank.transport)) {
        const ConstByteSpan came = handle.received(peer);
        EXPECT_EQ(std::vector<std::byte>(came.begin(), came.end()), pattern(bytes, peer, 0));
      }
      rank.transport.barrier(operation).wait_synchronize();
    }
  });
}

float total(Transport& group, const NcclRank& rank, float own) {
  DeviceBytes values(400);
  values.fill(std::vector<float>(100, own), rank.stream);
  group.sum(rank.operation(), cut(values.values(), group.ranks())).wait_synchronize();
  return fetch<float>(values.span(), rank.stream).back();
}

TEST(NcclTransportConformance, SplitsAndChannelsHaveMessagesOfTheirOwn) {
  on_nccl(8, [](NcclRank& rank) {
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
    EXPECT_EQ(total(*pair, rank, own), 2 * lowest + 2);
    EXPECT_EQ(total(*parity, rank, own), rank.rank() % 2 == 0 ? 12 : 16);
    EXPECT_EQ(total(*everybody, rank, own), 28);
  });
}

TEST(NcclTransportConformance, ASplitOfSomeDoesNotDisturbTheRest) {
  on_nccl(4, [](NcclRank& rank) {
    std::unique_ptr<Transport> some;
    if (rank.rank() < 2) some = rank.transport.split(std::vector<int>{0, 1});
    const auto channel = rank.transport.channel();
    if (some) EXPECT_EQ(total(*some, rank, 1.0f), 2.0f);
    EXPECT_EQ(total(*channel, rank, 1.0f), 4.0f);
  });
}

// All threads are on the same machine.
TEST(NcclTransportConformance, KnowsWhichRanksShareAHost) {
  on_nccl(3, [](NcclRank& rank) {
    EXPECT_EQ(rank.transport.hosts(), std::vector<int>(3, 0));
    EXPECT_EQ(rank.transport.channel()->hosts(), std::vector<int>(3, 0));
  });
}

TEST(NcclTransportConformance, CountsWhatItGaveToNccl) {
  on_nccl(4, [](NcclRank& rank) {
    const auto channel = rank.transport.channel();
    DeviceBytes send(1000);
    send.fill(pattern(1000, rank.rank(), 0), rank.stream);
    rank.transport.begin(rank.operation());
    const auto before = channel->counters().sent_bytes;
    rank.transport.end(rank.operation());
    channel->begin(rank.operation());
    const auto agreed = channel->counters().sent_bytes;
    EXPECT_GT(agreed, before);  // cost of the agreement
    channel->all_gather(rank.operation(), send.span(), 1000).wait_synchronize();
    EXPECT_EQ(channel->counters().sent_bytes - agreed, 3000u);
    channel
        ->sum(rank.operation(),
              cut(ValueSpan(send.span().data(), 200, Dtype::kF32, Memory::kDevice), 4))
        .wait_synchronize();
    EXPECT_EQ(channel->counters().sent_bytes - agreed, 3000u + 2 * 3 * 800 / 4);
    channel->end(rank.operation());
    kernels::synchronize(rank.stream);
  });
}

}  // namespace
}  // namespace tersor::test
