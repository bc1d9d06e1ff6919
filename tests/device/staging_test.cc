// Features of transports that stage device memory through the host. tests/transport has the
// conformance suites for the same fabrics.
#include <chrono>

#include "tests/transport/rank.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

class DeviceRanks : public OnMemory {};

INSTANTIATE_TEST_SUITE_P(Fabrics, DeviceRanks, ::testing::ValuesIn(fabrics()), fabric_name);

TEST_P(DeviceRanks, TransportTraits) {
  run(1, [](const Rank& rank) {
    Transport& transport = rank.transport;
    EXPECT_TRUE(transport.traits().device);
    EXPECT_TRUE(transport.traits().host);
    EXPECT_FALSE(transport.traits().queues);
    ASSERT_NE(transport.fault(), nullptr);
    EXPECT_EQ(transport.fault()->times, 0u);
  });
}

// One rank uses host memory. The transmitted bytes are the same.
TEST_P(DeviceRanks, ExchangeWithRanksOnHostMemory) {
  run(2, [](const Rank& rank) {
    const auto own = pattern(20'001, rank.rank(), 0);
    const bool host = rank.rank() == 0;
    const RankBytes on_device(rank, own);
    Operation operation = rank.operation();
    if (host) operation.memory = Memory::kHost;
    Handle handle = rank.transport.all_gather(
        operation, host ? ConstByteSpan(own) : on_device.span(), own.size());
    handle.wait_synchronize();
    if (!host) return rank.expect(handle, 0, 20'001, 0);
    EXPECT_TRUE(equal_bytes(handle.received(1), pattern(20'001, 1, 0)));
  });
}

/// Sums and maxima of device values have the same bits as on the host.
TEST_P(DeviceRanks, SumsAndMaximaMatchHostBits) {
  on_all_ranks([](const Rank& rank) {
    for (const std::size_t count : {0u, 3u, 257u, 5'001u, 17'003u})
      for (const auto call : {&Transport::sum, &Transport::maximum}) {
        std::vector<float> host(count);
        for (std::size_t i = 0; i < count; ++i)
          host[i] = 1.0f / static_cast<float>(i + 3 * static_cast<std::size_t>(rank.rank()) + 1);
        RankBytes device(rank, host);
        const auto counts = even_counts(count, rank.ranks());
        (rank.transport.*call)(operation_of(rank.transport), cut(host, counts)).wait_synchronize();
        (rank.transport.*call)(rank.operation(), device.parts(rank.ranks())).wait_synchronize();
        const auto read = device.read<float>();
        EXPECT_TRUE(equal_bytes(std::as_bytes(std::span(read)), std::as_bytes(std::span(host))))
            << count << " values";
      }
  });
}

TEST_P(DeviceRanks, RejectMixedMemory) {
  run(2, [](const Rank& rank) {
    std::vector<float> host(100);
    RankBytes device(rank, host);
    const std::vector<ValueSpan> mixed = {device.parts(2).front(), host};
    EXPECT_THROW(rank.transport.sum(rank.operation(), mixed), InvalidArgumentError);
    rank.transport.barrier(rank.operation()).wait_synchronize();  // the transport is not aborted
  });
}

TEST_P(DeviceRanks, ErrorNamesLateRank) {
  if (GetParam().most_ranks < 3) GTEST_SKIP() << "needs 3 ranks";
  for (const bool sums : {true, false}) {
    const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      if (transport.rank() == 2) return;
      const Rank rank(transport, GetParam());
      RankBytes bytes(rank, pattern(40'000, rank.rank(), 0));
      Operation operation = rank.operation();
      operation.timeout = 300ms;
      Handle handle = sums ? transport.sum(operation, bytes.parts(3))
                           : transport.all_gather(operation, bytes.span(), 40'000);
      handle.wait_synchronize();
    });
    for (const std::size_t rank : {0u, 1u})
      EXPECT_TRUE(says(errors[rank], "no message from rank 2 within 300 ms"));
  }
}

TEST_P(DeviceRanks, FailedRankAbortsPendingExchange) {
  if (GetParam().most_ranks < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    const Rank rank(transport, GetParam());
    const RankBytes bytes(rank, pattern(70'001, rank.rank(), 0));
    if (rank.rank() == 1) throw InvalidArgumentError("the disk is full");
    transport.all_gather(rank.operation(), bytes.span(), 70'001).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "rank 1 gave up: the disk is full"));
}

// A frame fault detected on a device ends the next collective on all ranks.
TEST_P(DeviceRanks, FrameFaultIsThrownAtNextBegin) {
  if (GetParam().most_ranks < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    const Rank rank(transport, GetParam());
    const Operation operation = rank.operation();
    if (rank.rank() == 0) {
      transport.begin(operation);
      transport.end(operation);
      *transport.fault() = {.times = 1, .kind = FrameFault::kIndices, .frame = 1, .frames = 2};
      EXPECT_THROW(transport.begin(operation), WireError);
      transport.begin(operation);
    }
    transport.barrier(operation).wait_synchronize();
  });
  EXPECT_TRUE(says(errors[0], "aborted"));
  EXPECT_TRUE(says(errors[0], "frame 1 of 2"));
  EXPECT_TRUE(says(errors[1], "rank 0 gave up: test: frame 1 of 2"));
}

}  // namespace
}  // namespace tersor::test
