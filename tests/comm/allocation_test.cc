// Collectives with a workspace allocate no buffers in steady state. A buffer is an allocation
// growing with the count.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

// Sanitizers replace operator new.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TERSOR_COUNTS_ALLOCATIONS 0
#else
#define TERSOR_COUNTS_ALLOCATIONS 1
#endif

namespace {

constexpr std::size_t kBufferBytes = 8192;  // larger than handles and lists of handles

std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0};

#if TERSOR_COUNTS_ALLOCATIONS
void* allocate(std::size_t bytes) {
  if (bytes >= kBufferBytes && counting.load(std::memory_order_relaxed)) allocations.fetch_add(1);
  void* pointer = std::malloc(bytes == 0 ? 1 : bytes);
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}
#endif

}  // namespace

#if TERSOR_COUNTS_ALLOCATIONS
void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* pointer) noexcept { std::free(pointer); }
void operator delete[](void* pointer) noexcept { std::free(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { std::free(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { std::free(pointer); }
#endif

namespace tersor::testing {
namespace {

// Allocations of all ranks during `steps` calls, after warm-up calls.
template <typename Call>
std::size_t count_allocations(Transport& transport, const Call& call) {
  const auto meet = [&] {
    transport.barrier({.name = "barrier", .tag = transport.reserve_tags(1)}).wait_synchronize();
  };
  for (int i = 0; i < 8; ++i) call();
  meet();
  if (transport.rank() == 0) {
    allocations = 0;
    counting = true;
  }
  meet();
  for (int i = 0; i < 10; ++i) call();
  meet();
  if (transport.rank() == 0) counting = false;
  meet();
  return allocations;
}

class SteadyState : public ::testing::TestWithParam<std::string> {};

TEST_P(SteadyState, AnAllreduceAllocatesNoBuffer) {
  if (!TERSOR_COUNTS_ALLOCATIONS) GTEST_SKIP() << "allocations are the sanitizer's";
  run_ranks(3, {}, [](Transport& transport) {
    Values gradient = gaussian(200000, 1);
    CollectiveWorkspace workspace;
    const CollectiveOptions options{
        .codec = GetParam(), .chunk_count = 1 << 16, .workspace = &workspace};
    const std::size_t found =
        count_allocations(transport, [&] { allreduce(transport, gradient, options); });
    EXPECT_EQ(found, 0u) << "in 10 calls on 3 ranks";
  });
}

// The splits differ in each call.
TEST_P(SteadyState, AnAllToAllAllocatesNoBuffer) {
  if (!TERSOR_COUNTS_ALLOCATIONS) GTEST_SKIP() << "allocations are the sanitizer's";
  run_ranks(3, {}, [](Transport& transport) {
    constexpr std::size_t kColumns = 4096, kRows = 12;
    const Values input = gaussian(kRows * kColumns, 1);
    Values output(input.size());
    CollectiveWorkspace workspace;
    std::size_t iteration = 0;
    const auto call = [&] {  // rank r sends to rank p as many rows as p sends to r
      std::vector<std::size_t> rows(3, 4);
      const auto rank = static_cast<std::size_t>(transport.rank());
      const std::size_t more = iteration++ % 4;
      if (rank < 2) {
        rows[1 - rank] += more;
        rows[rank] -= more;
      }
      all_to_all(transport, input, output, kColumns, {.sent = rows, .received = rows},
                 {.codec = GetParam(), .workspace = &workspace});
    };
    EXPECT_EQ(count_allocations(transport, call), 0u) << "in 10 calls on 3 ranks";
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, SteadyState,
                         ::testing::Values("none", "bf16", "int8", "int4", "topk"));

}  // namespace
}  // namespace tersor::testing
