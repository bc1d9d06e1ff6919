// Transports on the host with device memory, for exchanges and sums. Data written by a stream
// before an operation arrives, and results are available to work queued afterwards.
#include <array>
#include <chrono>
#include <cstring>
#include <list>
#include <numeric>

#include "tests/device/device_bytes.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr std::array<std::size_t, 6> kBytes = {0, 1, 255, 257, 9'001, 70'001};

class DeviceRanks : public OnFabric {
 protected:
  /// Runs the body on 1 to 4 ranks with separate streams, with and without `in_order`.
  void on_device_ranks(const std::function<void(Transport&, Operation)>& body) const {
    for (const bool in_order : {false, true})
      for (int ranks = 1; ranks <= std::min(4, GetParam().most_ranks); ++ranks) {
        SCOPED_TRACE(::testing::Message() << ranks << " ranks, in order: " << in_order);
        GetParam().run(ranks, [&](Transport& transport) {
          body(transport, {.memory = Memory::kDevice, .in_order = in_order});
        });
      }
  }
};

INSTANTIATE_TEST_SUITE_P(Fabrics, DeviceRanks, ::testing::ValuesIn(fabrics()), fabric_name);

/// The operation with a name, a separate tag and a stream.
Operation next(Transport& transport, Operation operation, const Stream& stream) {
  operation.name = "test";
  operation.signature = 42;
  operation.tag = transport.reserve_tags(1);
  operation.stream = stream.view();
  return operation;
}

TEST_P(DeviceRanks, TakeDeviceMemory) {
  run(1, [](Transport& transport) {
    EXPECT_TRUE(transport.traits().device);
    EXPECT_TRUE(transport.traits().host);
    EXPECT_FALSE(transport.traits().queues);
    ASSERT_NE(transport.fault(), nullptr);
    EXPECT_EQ(transport.fault()->times, 0u);
  });
}

TEST_P(DeviceRanks, AllGatherBringsEverybodysBytes) {
  on_device_ranks([](Transport& transport, const Operation& any) {
    const Stream stream;
    for (const std::size_t bytes : kBytes) {
      const LateBytes send(pattern(bytes, transport.rank(), 0), stream);
      Handle handle = transport.all_gather(next(transport, any, stream), send.span(), bytes);
      handle.wait_synchronize();
      std::list<LateCopy> came;
      for (const int rank : peers_of(transport)) came.emplace_back(handle.received(rank), stream);
      EXPECT_TRUE(handle.received(transport.rank()).empty());
      handle = {};
      stream.synchronize();
      for (const int rank : peers_of(transport)) {
        EXPECT_TRUE(equal_bytes(came.front().span(), pattern(bytes, rank, 0)))
            << bytes << " bytes from " << rank << " to " << transport.rank();
        came.pop_front();
      }
    }
  });
}

TEST_P(DeviceRanks, AllToAllBringsEachPairItsOwn) {
  const auto length = [](std::size_t bytes, int from, int to) {
    return bytes * static_cast<std::size_t>((from + 2 * to) % 4) / 3;
  };
  on_device_ranks([&](Transport& transport, const Operation& any) {
    const int own = transport.rank();
    const Stream stream;
    for (const std::size_t bytes : kBytes) {
      std::list<LateBytes> sends;
      std::vector<ConstByteSpan> spans;
      std::vector<std::size_t> capacities;
      for (int rank = 0; rank < transport.ranks(); ++rank) {
        sends.emplace_back(pattern(length(bytes, own, rank), own, rank), stream);
        spans.push_back(sends.back().span());
        capacities.push_back(length(bytes, rank, own));
      }
      Handle handle = transport.all_to_all(next(transport, any, stream), spans, capacities);
      handle.wait_synchronize();
      for (const int rank : peers_of(transport)) {
        const LateCopy came(handle.received(rank), stream);
        stream.synchronize();
        EXPECT_TRUE(equal_bytes(came.span(), pattern(length(bytes, rank, own), rank, own)))
            << bytes << " bytes from " << rank << " to " << own;
      }
    }
  });
}

TEST_P(DeviceRanks, SendMeetsReceive) {
  on_device_ranks([](Transport& transport, const Operation& any) {
    if (transport.ranks() == 1) return;
    const Stream stream;
    const int after = (transport.rank() + 1) % transport.ranks();
    const int before = (transport.rank() + transport.ranks() - 1) % transport.ranks();
    for (const std::size_t bytes : kBytes) {
      const LateBytes send(pattern(bytes, transport.rank(), after), stream);
      const Operation operation = next(transport, any, stream);
      Handle sent = transport.send(operation, after, send.span());
      Handle received = transport.receive(operation, before, bytes);
      received.wait_synchronize();
      sent.wait_synchronize();
      const LateCopy came(received.received(before), stream);
      stream.synchronize();
      EXPECT_TRUE(equal_bytes(came.span(), pattern(bytes, before, transport.rank())));
    }
  });
}

TEST_P(DeviceRanks, ReceiveAnyKnowsItsSource) {
  run(2, [](Transport& transport) {
    const Stream stream;
    const Operation operation = next(transport, {.memory = Memory::kDevice}, stream);
    const LateBytes send(pattern(9'001, 1, 0), stream);
    if (transport.rank() == 1) return transport.send(operation, 0, send.span()).wait_synchronize();
    Handle handle = transport.receive_any(operation, 9'001);
    handle.wait_synchronize();
    ASSERT_EQ(handle.source(), 1);
    const LateCopy came(handle.received(1), stream);
    stream.synchronize();
    EXPECT_TRUE(equal_bytes(came.span(), pattern(9'001, 1, 0)));
  });
}

// One rank uses host memory. The transmitted bytes are the same.
TEST_P(DeviceRanks, MeetRanksOnTheHost) {
  run(2, [](Transport& transport) {
    const Stream stream;
    const auto own = pattern(20'001, transport.rank(), 0);
    const LateBytes on_device(own, stream);
    const bool host = transport.rank() == 0;
    const Operation operation =
        next(transport, {.memory = host ? Memory::kHost : Memory::kDevice}, stream);
    Handle handle =
        transport.all_gather(operation, host ? ConstByteSpan(own) : on_device.span(), own.size());
    handle.wait_synchronize();
    const ConstByteSpan received = handle.received(1 - transport.rank());
    const LateCopy came(host ? ConstByteSpan() : received, stream);
    stream.synchronize();
    const auto expected = pattern(20'001, 1 - transport.rank(), 0);
    EXPECT_TRUE(equal_bytes(host ? received : came.span(), expected));
  });
}

/// Sums and maxima of device values have the same bits as on the host.
TEST_P(DeviceRanks, SumsHaveTheBitsOfTheHost) {
  on_device_ranks([](Transport& transport, const Operation& any) {
    const Stream stream;
    for (const std::size_t count : {0u, 3u, 257u, 5'001u, 17'003u})
      for (const auto call : {&Transport::sum, &Transport::maximum}) {
        std::vector<float> host(count);
        for (std::size_t i = 0; i < count; ++i)
          host[i] =
              1.0f / static_cast<float>(i + 3 * static_cast<std::size_t>(transport.rank()) + 1);
        const LateBytes device(std::as_bytes(std::span(host)), stream);
        const auto counts = even_counts(count, transport.ranks());
        const ValueSpan on_device = device.values(count, Dtype::kF32);
        (transport.*call)(next(transport, {}, stream), cut(host, counts)).wait_synchronize();
        (transport.*call)(next(transport, any, stream), cut(on_device, counts)).wait_synchronize();
        const LateCopy came(device.span(), stream);
        stream.synchronize();
        EXPECT_TRUE(equal_bytes(came.span(), std::as_bytes(std::span(host)))) << count << " values";
      }
  });
}

// Four operations at once, in a different order on each rank, completed as in an event loop.
TEST_P(DeviceRanks, ManyOperationsAtOnce) {
  constexpr int kOperations = 4;
  on_device_ranks([](Transport& transport, Operation any) {
    const Stream stream;
    const std::uint32_t tags = transport.reserve_tags(kOperations);
    std::list<LateBytes> sends;
    std::vector<Handle> handles(kOperations);
    for (int step = 0; step < kOperations; ++step) {
      const int which = (step + transport.rank()) % kOperations;
      sends.emplace_back(pattern(9'001, transport.rank(), which), stream);
      any.tag = tags + static_cast<std::uint32_t>(which);
      any.stream = stream.view();
      handles[static_cast<std::size_t>(which)] =
          transport.all_gather(any, sends.back().span(), 9'001);
    }
    for (std::size_t done = 0; done < handles.size();) {
      done = 0;
      for (Handle& handle : handles) done += handle.test();
      if (done < handles.size()) transport.wait_activity(Clock::now() + 10s);
    }
    for (int which = 0; which < kOperations; ++which)
      for (const int rank : peers_of(transport)) {
        const LateCopy came(handles[static_cast<std::size_t>(which)].received(rank), stream);
        stream.synchronize();
        EXPECT_TRUE(equal_bytes(came.span(), pattern(9'001, rank, which)));
      }
  });
}

TEST_P(DeviceRanks, CountTheBytesOfTheWire) {
  run(2, [this](Transport& transport) {
    const Stream stream;
    const auto own = transport.channel();
    const LateBytes send(pattern(1'001, transport.rank(), 0), stream);
    own->all_gather(next(*own, {.memory = Memory::kDevice}, stream), send.span(), 1'001)
        .wait_synchronize();
    EXPECT_EQ(own->counters().sent_bytes, 1'001 + GetParam().head_bytes);
    EXPECT_EQ(own->counters().received_bytes, 1'001 + GetParam().head_bytes);
    stream.synchronize();
  });
}

TEST_P(DeviceRanks, RefuseWhatIsNotOnTheDevice) {
  run(2, [](Transport& transport) {
    const Stream stream;
    const Operation operation = next(transport, {.memory = Memory::kDevice}, stream);
    std::vector<float> host(100);
    const LateBytes device(std::as_bytes(std::span(host)), stream);
    const std::vector<ValueSpan> mixed = {device.values(50, Dtype::kF32), host};
    EXPECT_THROW(transport.sum(operation, mixed), InvalidArgumentError);
    Handle handle = transport.all_gather(operation, device.span(), 400);
    handle.wait_synchronize();  // the transport is not poisoned
    stream.synchronize();
  });
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_P(DeviceRanks, ARankThatIsLateIsNamed) {
  if (GetParam().most_ranks < 3) GTEST_SKIP() << "needs 3 ranks";
  for (const bool sums : {true, false}) {
    auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      if (transport.rank() == 2) return;
      const Stream stream;
      const LateBytes bytes(pattern(40'000, transport.rank(), 0), stream);
      Operation operation = next(transport, {.memory = Memory::kDevice}, stream);
      operation.timeout = 300ms;
      const auto parts = cut(bytes.values(10'000, Dtype::kF32), even_counts(10'000, 3));
      Handle handle = sums ? transport.sum(operation, parts)
                           : transport.all_gather(operation, bytes.span(), 40'000);
      handle.wait_synchronize();
    });
    for (const int rank : {0, 1})
      EXPECT_TRUE(
          contains(errors[static_cast<std::size_t>(rank)], "no message from rank 2 within 300 ms"))
          << errors[static_cast<std::size_t>(rank)];
  }
}

TEST_P(DeviceRanks, PoisonEndsWhatIsUnderWay) {
  if (GetParam().most_ranks < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto errors = errors_of(GetParam(), 2, [](Transport& transport) {
    const Stream stream;
    const LateBytes bytes(pattern(70'001, transport.rank(), 0), stream);
    if (transport.rank() == 1) throw InvalidArgumentError("the disk is full");
    transport.all_gather(next(transport, {.memory = Memory::kDevice}, stream), bytes.span(), 70'001)
        .wait_synchronize();
  });
  EXPECT_TRUE(contains(errors[0], "rank 1 gave up: the disk is full")) << errors[0];
}

// A frame fault detected on a device ends the next collective on all ranks.
TEST_P(DeviceRanks, FaultsOfFramesAreThrownAtTheNextBegin) {
  if (GetParam().most_ranks < 2) GTEST_SKIP() << "needs 2 ranks";
  const auto errors = errors_of(GetParam(), 2, [](Transport& transport) {
    const Stream stream;
    const Operation operation = next(transport, {.memory = Memory::kDevice}, stream);
    if (transport.rank() == 0) {
      transport.begin(operation);
      transport.end(operation);
      *transport.fault() = {.times = 1, .kind = FrameFault::kIndices, .frame = 1, .frames = 2};
      EXPECT_THROW(transport.begin(operation), WireError);
      transport.begin(operation);
    }
    transport.barrier(operation).wait_synchronize();
  });
  EXPECT_TRUE(contains(errors[0], "aborted") && contains(errors[0], "frame 1 of 2")) << errors[0];
  EXPECT_TRUE(contains(errors[1], "rank 0 gave up: test: frame 1 of 2")) << errors[1];
}

}  // namespace
}  // namespace tersor::test
