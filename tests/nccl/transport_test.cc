// Features of the NCCL transport only, for several execution orders of the device. tests/transport
// has the conformance suites.
#include "tests/nccl/nccl_ranks.h"

namespace tersor::test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StrEq;

std::vector<ValueSpan> parts_of(const ValueSpan& values, int ranks) {
  return cut(values, even_counts(values.count(), ranks));
}

// The parts lie in another order on each rank, and touch on some ranks only.
TEST(NcclTransport, SumsPartsByIndexAtAnyAddress) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 3, [](NcclRank& rank) {
    constexpr std::size_t kCount = 256;
    constexpr std::size_t kPlaces[3][2] = {{0, 1}, {1, 0}, {3, 1}};
    const auto& places = kPlaces[rank.rank()];
    std::vector<float> values(4 * kCount), expected(4 * kCount);
    std::vector<ValueSpan> parts(3);
    DeviceBytes memory(values.size() * sizeof(float));
    for (std::size_t part = 0; part < 2; ++part) {
      parts[part] = memory.values().subspan(places[part] * kCount, kCount);
      const auto first = static_cast<std::ptrdiff_t>(places[part] * kCount);
      const float value = part == 0 ? 1.0f : 100.0f;
      std::fill_n(values.begin() + first, kCount, value);
      std::fill_n(expected.begin() + first, kCount, 3 * value);
    }
    memory.fill(values, rank.stream);
    rank.transport.sum(rank.operation(), parts).wait_synchronize();
    EXPECT_EQ(fetch<float>(memory.span(), rank.stream), expected);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(3));
  EXPECT_EQ(nccl.calls("ncclAllReduce"), 3 * 2);
}

TEST(NcclTransport, OperationsOverlapWithinABracket) {
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
TEST(NcclTransport, BracketsKeepTheirOrderAcrossStreams) {
  on_all_nccl_ranks([](NcclRank& rank) {
    const Stream second;
    DeviceBytes values(4000);
    values.fill(std::vector<float>(1000, 1.0f), rank.stream);
    Operation operation = rank.operation();
    operation.in_order = true;
    const std::vector<ValueSpan> parts = parts_of(values.values(), rank.ranks());
    rank.transport.sum(operation, parts).wait_synchronize();
    operation.stream = second.view();
    rank.transport.sum(operation, parts).wait_synchronize();
    const auto all = static_cast<float>(rank.ranks());
    EXPECT_EQ(fetch<float>(values.span(), second.view()), std::vector<float>(1000, all * all));
  });
}

// The first stream must read a block before the second stream's receive reuses the block.
TEST(NcclTransport, SecondStreamDoesNotOverwriteBlockInUse) {
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

TEST(NcclTransport, GathersSmallHostMessages) {
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

// All threads are on the same machine.
TEST(NcclTransport, DetectsRanksOnSameHost) {
  on_nccl(3, [](NcclRank& rank) {
    EXPECT_EQ(rank.transport.hosts(), std::vector<int>(3, 0));
    EXPECT_EQ(rank.transport.channel()->hosts(), std::vector<int>(3, 0));
  });
}

TEST(NcclTransport, CountsBytesPassedToNccl) {
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
              parts_of(ValueSpan(send.span().data(), 200, Dtype::kF32, Memory::kDevice), 4))
        .wait_synchronize();
    EXPECT_EQ(channel->counters().sent_bytes - agreed, 3000u + 2 * 3 * 800 / 4);
    channel->end(rank.operation());
    kernels::synchronize(rank.stream);
  });
}

TEST(NcclExchange, SendsNonemptyMessagesInOneGroup) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 3, [&](NcclRank& rank) {
    rank.transport.begin(rank.operation());
    rank.meet();
    const int groups = nccl.calls("ncclGroupEnd");
    rank.meet();
    const int next = (rank.rank() + 1) % 3, last = (rank.rank() + 2) % 3;
    DeviceBytes sent(500);
    sent.fill(pattern(500, rank.rank(), next), rank.stream);
    const SendTo sends[] = {{next, sent.span()}, {last, {}}};
    const ReceiveFrom receives[] = {{next, 0}, {last, 500}};
    rank.transport.exchange(rank.operation(), sends, receives).wait_synchronize();
    rank.meet();
    EXPECT_EQ(nccl.calls("ncclGroupEnd") - groups, 3);
    rank.transport.end(rank.operation());
  });
  EXPECT_THAT(run.errors, Each(StrEq("")));
  EXPECT_EQ(nccl.calls("ncclSend"), 3);
  EXPECT_EQ(nccl.calls("ncclRecv"), 3);
}

// A rank without messages must agree, too. A send and its receive involve no other rank.
TEST(NcclExchange, RequiresAgreementUnlikeASend) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 3, [](NcclRank& rank) {
    DeviceBytes bytes(100);
    bytes.fill(pattern(100, rank.rank(), 1), rank.stream);
    const Operation alone = rank.operation("pair", 7);
    if (rank.rank() == 0) rank.transport.send(alone, 1, bytes.span()).wait_synchronize();
    if (rank.rank() == 1) rank.transport.receive(alone, 0, 100).wait_synchronize();
    kernels::synchronize(rank.stream);
    rank.transport.exchange(rank.operation("step", rank.rank() == 2 ? 2 : 1), {}, {});
  });
  EXPECT_THAT(run.errors, Each(HasSubstr("step with other arguments")));
}

// An empty gather on a device still waits for all ranks.
TEST(NcclExchange, EmptyGatherUsesBarrier) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 4, [](NcclRank& rank) {
    Handle gathered = rank.transport.all_gather(rank.operation(), {}, 0);
    gathered.wait_synchronize();
    for (int peer = 0; peer < 4; ++peer) EXPECT_TRUE(gathered.received(peer).empty());
    rank.transport.barrier(rank.operation()).wait_synchronize();
  });
  EXPECT_THAT(run.errors, Each(StrEq("")));
  EXPECT_EQ(nccl.calls("ncclAllReduce"), 2 * 4);
}

TEST(NcclExchange, RejectsHostMemory) {
  on_nccl(3, [](NcclRank& rank) {
    std::vector<std::byte> host(8);
    const SendTo send{(rank.rank() + 1) % 3, host};
    EXPECT_THAT(error_of<InvalidArgumentError>([&] {
                  rank.transport.exchange(rank.operation("step"), {&send, 1}, {});
                }),
                HasSubstr("the pointer is to host memory"));
    sum_up(rank, rank.operation());
  });
}

}  // namespace
}  // namespace tersor::test
