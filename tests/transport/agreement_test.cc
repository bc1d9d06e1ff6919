// Mismatched calls: every rank raises an error with a differing rank, the operation, and the
// difference.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "tests/transport/calls.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

class TransportFaultsByDisagreement : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportFaultsByDisagreement, ::testing::ValuesIn(fabrics()),
                         fabric_name);

TEST_P(TransportFaultsByDisagreement, SignatureMismatchFailsOnAllRanks) {
  for (int which = 0; which < kCalls; ++which) {
    SCOPED_TRACE(::testing::Message() << "call " << which);
    const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
      const std::uint64_t signature = transport.rank() == 2 ? 1 : 0;
      call(transport, which, {.name = "allreduce", .signature = signature, .timeout = 20s}, 50'000);
    });
    expect_all_fail(errors, {"allreduce", "rank 2", "other arguments"});
  }
}

TEST_P(TransportFaultsByDisagreement, OperationMismatchFailsOnAllRanks) {
  for (int one = 0; one < kCalls; ++one)
    for (int other = 0; other < kCalls; ++other) {
      if (one == other) continue;
      SCOPED_TRACE(::testing::Message() << "calls " << one << " and " << other);
      const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
        call(transport, transport.rank() == 1 ? other : one, {.name = "step", .timeout = 20s}, 999);
      });
      const bool both_sum = one + other == 7 && std::abs(one - other) == 3;
      expect_all_fail(errors, {"step", "rank 1"});
      expect_all_fail(errors, {both_sum ? "other arguments" : "where this rank calls"});
    }
}

// Regardless of the ranks' algorithms, some rank immediately receives a message from a differing
// rank.
TEST_P(TransportFaultsByDisagreement, CountMismatchFailsOnAllRanksForAnyAlgorithm) {
  constexpr std::size_t kCounts[] = {200, 10'000, 200'000};
  for (const std::size_t count : kCounts)
    for (const std::size_t other : kCounts)
      for (int failed_rank = 0; failed_rank < 4 && count != other; ++failed_rank) {
        SCOPED_TRACE(::testing::Message() << count << ", rank " << failed_rank << " " << other);
        const auto errors = errors_of(GetParam(), 4, [&](Transport& transport) {
          const bool differs = transport.rank() == failed_rank;
          call(transport, 5, {.name = "step", .timeout = 20s}, differs ? other : count);
        });
        expect_all_fail(errors, {"step", std::to_string(count) + " values of f32"});
        expect_all_fail(errors, {std::to_string(other) + " values of f32"});
      }
}

TEST_P(TransportFaultsByDisagreement, SumCountOrTypeMismatchFailsOnAllRanks) {
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

// Equal count and dtype, but different parts: detected by the sizes of the chunks.
TEST_P(TransportFaultsByDisagreement, SumPartsMismatchFailsOnAllRanks) {
  const auto errors = errors_of(GetParam(), 2, [&](Transport& transport) {
    std::vector<float> values(40'000);
    const std::size_t first = transport.rank() == 0 ? 20'000 : 10'000;
    transport.sum({.name = "sum", .timeout = 20s}, cut(values, {first, 40'000 - first}))
        .wait_synchronize();
  });
  expect_all_fail(errors, {"sum", "sends", "bytes, but this rank expects"});
}

TEST_P(TransportFaultsByDisagreement, OversizedMessageFailsOnAllRanks) {
  const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
    const std::vector<std::byte> send(transport.rank() == 1 ? 300 : 200);
    transport.all_gather({.name = "allgather", .timeout = 20s}, send, 200).wait_synchronize();
    transport.barrier({.name = "allgather", .tag = 1, .timeout = 20s}).wait_synchronize();
  });
  expect_all_fail(errors,
                  {"allgather", "rank 1 sends 300 bytes, but this rank expects at most 200"});
}

/// Sends to rank `to`. On rank `to`, receives from all peers. The signature is
/// `operation.signature`.
void gather_to(Transport& transport, int to, const Operation& operation) {
  const std::vector<std::byte> bytes(100);
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  if (transport.rank() != to) sends.push_back({to, bytes});
  for (const int peer : peers_of(transport))
    if (transport.rank() == to) receives.push_back({peer, 100});
  transport.exchange(operation, sends, receives).wait_synchronize();
}

/// A rank without receives gets the error here: in the second barrier if the other ranks had
/// started the first.
void meet_twice(Transport& transport, std::chrono::milliseconds timeout) {
  for (const std::uint32_t tag : {1u, 2u})
    transport.barrier({.name = "barrier", .tag = tag, .timeout = timeout}).wait_synchronize();
}

// Rank 1 waits for no rank. The message of rank 2 arrives before, during or after the call of rank
// 1.
TEST_P(TransportFaultsByDisagreement, UnexpectedMessageFailsOnAllRanks) {
  for (const int late : {1, 2}) {
    SCOPED_TRACE(::testing::Message() << "rank " << late << " is late");
    const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
      const std::uint64_t root = transport.rank() == 2 ? 1 : 0;
      if (transport.rank() == late) std::this_thread::sleep_for(50ms);
      gather_to(transport, static_cast<int>(root),
                {.name = "gather", .signature = root, .takes_all = true, .timeout = 20s});
      meet_twice(transport, 20s);
    });
    expect_all_fail(errors, {"gather on rank 1: rank 2 calls gather with other arguments"});
  }
}

// Both roots wait for all ranks, and the other ranks are in later calls. Therefore only a query at
// the deadline reveals the mismatch.
TEST_P(TransportFaultsByDisagreement, RootMismatchFailsOnAllRanksAtTimeout) {
  const auto errors = errors_of(GetParam(), 3, [&](Transport& transport) {
    const std::uint64_t root = transport.rank() == 2 ? 2 : 0;
    gather_to(transport, static_cast<int>(root),
              {.name = "gather", .signature = root, .takes_all = true, .timeout = 700ms});
    meet_twice(transport, 700ms);
  });
  expect_all_fail(errors, {"with other arguments"});
  expect_all_fail(errors, {"rank 2"});
  expect_all_fail(errors, {"rank 0"});
}

}  // namespace
}  // namespace tersor::test
