// The emulator finds what it is there to find: each broken body here is caught, with the kernel,
// the thread and the place in the message; the sound ones pass under every order of threads.

#include "kernels/common/memory.cuh"
#include "kernels/common/queue.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tersor::emulator {
namespace {

using kernels::atomic_add;
using kernels::load;
using kernels::Queue;
using kernels::SharedArray;
using kernels::store;

/// Words of device memory.
class Words {
 public:
  explicit Words(std::size_t count, Written written = Written::kYes)
      : words_(count), region_(words_.data(), 4 * count, written, "the words") {}

  std::uint32_t* pointer() { return words_.data(); }
  std::uint32_t operator[](std::size_t i) const { return words_[i]; }

 private:
  std::vector<std::uint32_t> words_;
  Region region_;
};

/// A body of one block (or several) made of a function.
template <class Body, unsigned kThreadsOfIt = 64>
struct TestKernel {
  static constexpr unsigned kThreads = kThreadsOfIt;
  static constexpr unsigned kResident = 1;
  static constexpr bool kScans = true;
  struct Shared {
    SharedArray<std::uint32_t, 64> array;
  };

  Body body;

  template <class Block>
  void operator()(const Block& block, Shared& shared) const {
    body(block, shared);
  }
};

/// What the emulator says of a body; "" where it is sound under a hundred orders of threads and two
/// patterns of what shared memory holds at first.
template <class Body>
std::string fault_of(const Body& body, unsigned blocks = 1) {
  try {
    for (int order = 0; order < 100; ++order) {
      settings().poison = order % 2 == 0 ? 0xcd : 0x00;
      Queue(StreamView{}).launch(TestKernel<Body>{body}, blocks);
    }
  } catch (const EmulatorError& error) {
    return error.what();
  }
  return "";
}

::testing::AssertionResult says(const std::string& fault, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    if (fault.find(word) == std::string::npos)
      return ::testing::AssertionFailure() << "\"" << fault << "\" does not say \"" << word << "\"";
  return ::testing::AssertionSuccess();
}

/// Each thread hands its number to its neighbour through shared memory.
template <bool kSync>
struct Neighbour {
  std::uint32_t* out;
  template <class Block, class Shared>
  void operator()(const Block& block, Shared& shared) const {
    shared.array.set(block.thread_rank(), block.thread_rank());
    if (kSync) block.sync();
    store(out + block.thread_rank(), shared.array.get((block.thread_rank() + 1) % 64));
  }
};

TEST(Emulator, ASoundExchangePasses) {
  Words out(64, Written::kNo);
  EXPECT_EQ(fault_of(Neighbour<true>{out.pointer()}), "");
  for (std::uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], (i + 1) % 64);
}

TEST(Emulator, AMissingSyncIsFound) {
  Words out(64, Written::kNo);
  const std::string fault = fault_of(Neighbour<false>{out.pointer()});
  EXPECT_TRUE(says(fault, {"Neighbour<false>", "block 0, thread ", "shared memory"})) << fault;
}

/// Counts threads in one word of shared memory.
template <bool kAtomic>
struct CountThreads {
  std::uint32_t* out;
  template <class Block, class Shared>
  void operator()(const Block& block, Shared& shared) const {
    if (block.thread_rank() == 0) shared.array.set(7, 0);
    block.sync();
    if (kAtomic)
      shared.array.add(7, 1);
    else
      shared.array.set(7, shared.array.get(7) + 1);
    block.sync();
    if (block.thread_rank() == 0) store(out, shared.array.get(7));
  }
};

TEST(Emulator, AnAtomicReplacedByAPlainAddIsFound) {
  Words out(1, Written::kNo);
  EXPECT_EQ(fault_of(CountThreads<true>{out.pointer()}), "");
  EXPECT_EQ(out[0], 64u);
  EXPECT_TRUE(says(fault_of(CountThreads<false>{out.pointer()}),
                   {"CountThreads<false>", "byte 28 of shared memory", "no barrier in between"}));
}

TEST(Emulator, TheSameInDeviceMemory) {
  Words count(1);
  const auto atomic = [out = count.pointer()](const auto&, auto&) { atomic_add(out, 1u); };
  const auto plain = [out = count.pointer()](const auto&, auto&) { store(out, load(out) + 1); };
  EXPECT_EQ(fault_of(atomic, 3), "");
  EXPECT_TRUE(says(fault_of(plain), {"the words", "no barrier in between"}));
}

TEST(Emulator, BlocksMeetAtNoWord) {
  Words word(1);
  const auto body = [out = word.pointer()](const auto& block, auto&) {
    if (block.thread_rank() == 0) store(out, block.rank());
  };
  EXPECT_EQ(fault_of(body, 1), "");
  EXPECT_TRUE(says(fault_of(body, 2), {"block ", "writes byte 0 of the words", "of block "}));
}

TEST(Emulator, AnIndexOffByOneIsFound) {
  Words out(64, Written::kNo);
  const auto beyond = [out = out.pointer()](const auto& block, auto&) {
    store(out + block.thread_rank() + 1, 1u);
  };
  EXPECT_TRUE(says(fault_of(beyond), {"thread 63", "writes 4 bytes outside of all spans"}));
  const auto shared_beyond = [](const auto& block, auto& shared) {
    shared.array.set(block.thread_rank() + 1, 1);
  };
  EXPECT_TRUE(says(fault_of(shared_beyond), {"thread 63", "element 64 of 64 in shared memory"}));
}

TEST(Emulator, WhatWasNeverWrittenIsNotRead) {
  Words words(64, Written::kNo);
  const auto body = [in = words.pointer()](const auto& block, auto&) {
    (void)load(in + block.thread_rank());
  };
  EXPECT_TRUE(says(fault_of(body), {"of the words", "never written"}));
  const auto shared_body = [](const auto& block, auto& shared) {
    (void)shared.array.get(block.thread_rank());
  };
  EXPECT_TRUE(says(fault_of(shared_body), {"shared memory", "never written"}));
}

TEST(Emulator, AMisalignedAccessIsFound) {
  Words words(4);
  const auto body = [in = words.pointer()](const auto&, auto&) {
    (void)load(reinterpret_cast<const kernels::Words64*>(in + 1));
  };
  EXPECT_TRUE(says(fault_of(body), {"8 bytes at an address that is no multiple"}));
}

TEST(Emulator, ASyncThatSomeDoNotReachIsFound) {
  const auto body = [](const auto& block, auto&) {
    if (block.thread_rank() % 2 == 0) block.sync();
  };
  EXPECT_TRUE(says(fault_of(body), {"thread 0", "waits for ever at block.sync", "32 of 64"}));
}

TEST(Emulator, AWarpThatIsNotWholeIsFound) {
  const auto leaves = [](const auto& block, auto&) {
    if (block.thread_rank() != 5) (void)block.warp().ballot(true);
  };
  EXPECT_TRUE(says(fault_of(leaves), {"waits for ever at warp.ballot"}));
  const auto differs = [](const auto& block, auto&) {
    if (block.thread_rank() % 32 == 5)
      (void)block.warp().maximum(1);
    else
      (void)block.warp().ballot(true);
  };
  EXPECT_TRUE(says(fault_of(differs), {"where other threads call"}));
}

TEST(Emulator, GroupsComputeWhatTheySay) {
  Words out(64 * 5, Written::kNo);
  const auto body = [out = out.pointer()](const auto& block, auto&) {
    const unsigned rank = block.thread_rank();
    std::uint64_t total = 0;
    store(out + rank, static_cast<std::uint32_t>(block.exclusive_sum(rank, total)));
    store(out + 64 + rank, static_cast<std::uint32_t>(total));
    store(out + 128 + rank, block.warp().ballot(rank % 3 == 0));
    store(out + 192 + rank, block.warp().maximum(rank ^ 21));
    store(out + 256 + rank,
          block.warp().shuffle_xor(rank, 16) + static_cast<std::uint32_t>(block.warp().sum(1)));
  };
  EXPECT_EQ(fault_of(body), "");
  for (std::uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i], i * (i - 1) / 2);
    EXPECT_EQ(out[64 + i], 2016u);
    EXPECT_EQ(out[128 + i] >> i % 32 & 1, i % 3 == 0);
    EXPECT_EQ(out[192 + i], i < 32 ? 31u : 63u);
    EXPECT_EQ(out[256 + i], (i ^ 16) + 32);
  }
}

/// The last block adds up what all wrote; the others must not touch it any more.
template <bool kWaits>
struct SumOfBlocks {
  std::uint32_t* parts;
  std::uint32_t* ticket;
  std::uint32_t* sum;
  template <class Block, class Shared>
  void operator()(const Block& block, Shared&) const {
    if (block.thread_rank() == 0) store(parts + block.rank(), block.rank() + 1);
    if (kWaits && !block.is_last(ticket)) return;
    if (block.thread_rank() != 0) return;
    std::uint32_t all = 0;
    for (unsigned i = 0; i < block.blocks(); ++i) all += kernels::load_fresh(parts + i);
    store(sum, all);
  }
};

TEST(Emulator, TheLastBlockSeesAll) {
  const auto run_once = [](auto kernel) {
    Queue(StreamView{}).launch(TestKernel<decltype(kernel)>{kernel}, 5);
  };
  for (int order = 0; order < 50; ++order) {
    Words parts(5, Written::kNo), ticket(1), sum(1, Written::kNo);
    run_once(SumOfBlocks<true>{parts.pointer(), ticket.pointer(), sum.pointer()});
    EXPECT_EQ(sum[0], 15u);
  }
  Words parts(5, Written::kNo), ticket(1), sum(1, Written::kNo);
  EXPECT_THROW(run_once(SumOfBlocks<false>{parts.pointer(), ticket.pointer(), sum.pointer()}),
               EmulatorError);
}

TEST(Emulator, OrdersDiffer) {
  std::vector<std::uint32_t> first_seen;
  Words order(64, Written::kNo), next(1);
  const auto body = [&](const auto& block, auto&) {
    store(order.pointer() + atomic_add(next.pointer(), 1u), block.thread_rank());
  };
  for (int launch = 0; launch < 3; ++launch) {
    clear(next.pointer(), 4);
    Queue(StreamView{}).launch(TestKernel<decltype(body)>{body}, 1);
    first_seen.push_back(order[0] * 64 + order[1]);
  }
  EXPECT_FALSE(first_seen[0] == first_seen[1] && first_seen[1] == first_seen[2]);
}

TEST(Emulator, ZerosStayInsideToo) {
  Words words(4);
  EXPECT_THROW(Queue(StreamView{}).zero(words.pointer(), 20), EmulatorError);
  EXPECT_NO_THROW(Queue(StreamView{}).zero(words.pointer(), 16));
}

}  // namespace
}  // namespace tersor::emulator
