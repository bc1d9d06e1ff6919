// Staging of device memory under every order allowed by streams and events: captures, allocations,
// and a stream without progress.
#include <atomic>
#include <chrono>
#include <list>

#include "tests/device/device_bytes.h"
#include "tests/emulated/ranks.h"
#include "tests/emulated/streams.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kStagedBytes = 4'001;

Operation next(Transport& transport, const Stream& stream) {
  return {.name = "test",
          .tag = transport.reserve_tags(1),
          .memory = Memory::kDevice,
          .stream = stream.view()};
}

/// Gathers in several rounds without waits. Each round reuses memory of the previous round.
void gather_rounds(Transport& transport, int rounds) {
  const Stream stream;
  std::list<LateBytes> sends;
  std::list<LateCopy> came;
  for (int round = 0; round < rounds; ++round) {
    sends.emplace_back(pattern(kStagedBytes, transport.rank(), round), stream);
    Handle handle =
        transport.all_gather(next(transport, stream), sends.back().span(), kStagedBytes);
    handle.wait_synchronize();
    for (const int rank : peers_of(transport)) came.emplace_back(handle.received(rank), stream);
  }
  stream.synchronize();
  for (int round = 0; round < rounds; ++round)
    for (const int rank : peers_of(transport)) {
      EXPECT_TRUE(equal_bytes(came.front().span(), pattern(kStagedBytes, rank, round))) << round;
      came.pop_front();
    }
}

TEST(Staging, BytesAreRightInEveryOrder) {
  emulator::for_each_order(
      20, [] { run_ranks(3, {}, [](Transport& transport) { gather_rounds(transport, 5); }); });
}

/// Two consecutive sums in place.
void sum_twice(Transport& transport) {
  const Stream stream;
  const std::vector<float> ones(3'000, 1.0f);
  const LateBytes bytes(std::as_bytes(std::span(ones)), stream);
  const auto parts = cut(bytes.values(3'000, Dtype::kF32), even_counts(3'000, transport.ranks()));
  for (int round = 0; round < 2; ++round)
    transport.sum(next(transport, stream), parts).wait_synchronize();
  const LateCopy came(bytes.span(), stream);
  stream.synchronize();
  const std::vector<float> expected(3'000,
                                    static_cast<float>(transport.ranks() * transport.ranks()));
  EXPECT_TRUE(equal_bytes(came.span(), std::as_bytes(std::span(expected))));
}

TEST(Staging, SumsAreRightInEveryOrder) {
  emulator::for_each_order(20, [] { run_ranks(3, {}, sum_twice); });
}

TEST(Staging, ACapturedStreamIsRefused) {
  run_ranks(1, {}, [](Transport& transport) {
    const Stream stream;
    const Operation operation = next(transport, stream);
    transport.barrier(operation).wait_synchronize();
    emulator::begin_capture(stream.view());
    EXPECT_THROW(transport.barrier(operation), InvalidArgumentError);
    EXPECT_THROW(transport.begin(operation), InvalidArgumentError);
    emulator::end_capture(stream.view());
    transport.barrier(operation).wait_synchronize();
  });
}

/// A gather and a sum at once on all ranks. Afterwards their memory is unused.
void one_step(Transport& transport, const Stream& stream, const LateBytes& bytes) {
  const auto parts = cut(bytes.values(5'000, Dtype::kF32), even_counts(5'000, transport.ranks()));
  std::vector<Handle> handles;
  handles.push_back(transport.all_gather(next(transport, stream), bytes.span(), 20'000));
  handles.push_back(transport.sum(next(transport, stream), parts));
  for (Handle& handle : handles) handle.wait_synchronize();
  transport.barrier(next(transport, stream)).wait_synchronize();
  handles.clear();
  stream.synchronize();
  transport.barrier(next(transport, stream)).wait_synchronize();
}

TEST(Staging, NothingIsAllocatedAfterTheFirstStep) {
  std::atomic<std::uint64_t> after_first{0};
  run_ranks(3, {}, [&](Transport& transport) {
    const Stream stream;
    const LateBytes bytes(pattern(20'000, 0, 0), stream);
    one_step(transport, stream, bytes);
    after_first = emulator::all_counters().allocations;
    transport.barrier(next(transport, stream)).wait_synchronize();
    for (int step = 0; step < 5; ++step) one_step(transport, stream, bytes);
    EXPECT_EQ(emulator::all_counters().allocations, after_first);
    transport.barrier(next(transport, stream)).wait_synchronize();
  });
}

// The error names no rank, because this rank's own device is late.
TEST(Staging, AStreamThatDoesNotComeIsSaidAtTheDeadline) {
  run_ranks(1, {}, [](Transport& transport) {
    std::atomic<bool> open{false};
    const Stream stream;
    emulator::enqueue_when(
        stream.view(), "the gate", [&] { return open.load(); }, [] {});
    const Buffer values(400, Memory::kDevice);
    Operation operation = next(transport, stream);
    operation.timeout = 100ms;
    try {
      transport.sum(operation, std::vector{values.values(100, Dtype::kF32)}).wait_synchronize();
      ADD_FAILURE() << "no error";
    } catch (const TransportError& error) {
      EXPECT_NE(std::string(error.what()).find("stream did not reach its copies within 100 ms"),
                std::string::npos)
          << error.what();
    }
    open = true;
    stream.synchronize();
  });
}

}  // namespace
}  // namespace tersor::test
