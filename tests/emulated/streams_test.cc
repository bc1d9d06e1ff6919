// Emulated streams guarantee exactly the order of real streams and events. Correct code works with
// every seed, and a missing event is detected with a few seeds.

#include "tests/emulated/streams.h"

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"
#include "tests/emulated/ranks.h"

#include <gtest/gtest.h>
#include <tersor/buffer.h>
#include <tersor/error.h>

#include <cstring>
#include <numeric>

namespace tersor::emulator {
namespace {

using kernels::copy_bytes;
using kernels::Event;
using kernels::PinnedBuffer;
using kernels::zero_bytes;

constexpr std::uint64_t kStreamOrders = 100;

/// Work appending its number to a list.
class Steps {
 public:
  void queue(StreamView stream, int number) {
    enqueue(stream, "step " + std::to_string(number), [this, number] { done_.push_back(number); });
  }
  const std::vector<int>& done() const { return done_; }
  void clear() { done_.clear(); }

 private:
  std::vector<int> done_;
};

template <typename Exception>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

::testing::AssertionResult says(const std::string& message, const std::string& part) {
  if (message.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << '"' << message << "\" does not say \"" << part << '"';
}

TEST(EmulatedStreams, KeepTheirOrder) {
  for_each_order(kStreamOrders, [] {
    const Stream stream;
    Steps steps;
    for (int i = 0; i < 10; ++i) steps.queue(stream.view(), i);
    stream.synchronize();
    EXPECT_EQ(steps.done(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_TRUE(is_drained(stream.view()));
  });
}

TEST(EmulatedStreams, TheNullStreamIsImmediate) {
  Steps steps;
  steps.queue({}, 1);
  EXPECT_EQ(steps.done(), (std::vector<int>{1}));
}

/// A value written twice by one stream and read by another stream: 0, 1 or 2.
int value_read(bool held) {
  const Stream writer, reader;
  int value = 0, read = -1;
  Event written;
  enqueue(writer.view(), "first write", [&] { value = 1; });
  enqueue(writer.view(), "second write", [&] { value = 2; });
  written.record(writer.view());
  if (held) written.hold(reader.view());
  enqueue(reader.view(), "read", [&] { read = value; });
  reader.synchronize();
  writer.synchronize();
  return read;
}

TEST(EmulatedStreams, EventsOrderThem) {
  for_each_order(kStreamOrders, [] { EXPECT_EQ(value_read(true), 2); });
}

TEST(EmulatedStreams, AMissingHoldIsFoundUnderOneOfTwentySeeds) {
  int found = 0;
  for_each_order(20, [&] { found += value_read(false) != 2; });
  EXPECT_GT(found, 0);
}

TEST(EmulatedStreams, EveryOrderThatIsAllowedComesUp) {
  std::vector<int> seen(3);
  for_each_order(500, [&] { ++seen[static_cast<std::size_t>(value_read(false))]; });
  for (const int times : seen) EXPECT_GT(times, 0);
}

TEST(EmulatedStreams, AHoldIsForTheLastRecordBeforeIt) {
  for_each_order(kStreamOrders, [] {
    const Stream stream, never, held;
    Event event;
    event.record(stream.view());
    event.hold(held.view());
    enqueue_when(
        never.view(), "for ever", [] { return false; }, [] {});
    event.record(never.view());
    held.synchronize();
    EXPECT_FALSE(event.done());
    EXPECT_FALSE(is_drained(never.view()));
  });
}

TEST(EmulatedStreams, AnEventThatWasNeverRecordedHoldsNothing) {
  const Stream stream;
  const Event event;
  event.hold(stream.view());
  stream.synchronize();
  EXPECT_TRUE(event.done());
}

TEST(EmulatedStreams, WhoAsksForAnEventLetsWorkRun) {
  for_each_order(kStreamOrders, [] {
    const Stream stream;
    Steps steps;
    Event event;
    for (int i = 0; i < 5; ++i) steps.queue(stream.view(), i);
    event.record(stream.view());
    while (!event.done()) continue;
    EXPECT_EQ(steps.done().size(), 5u);
  });
}

TEST(EmulatedStreams, WorkThatWasQueuedOutlivesItsStream) {
  Steps steps;
  Event event;
  {
    const Stream stream;
    steps.queue(stream.view(), 1);
    event.record(stream.view());
  }
  const Stream other;
  event.hold(other.view());
  other.synchronize();
  EXPECT_EQ(steps.done(), (std::vector<int>{1}));
}

TEST(EmulatedStreams, RanksMeet) {
  for (const int ranks : {1, 2, 3, 4})
    for_each_order(20, [ranks] {
      int arrived = 0;
      std::vector<int> seen(static_cast<std::size_t>(ranks));
      run_on_streams(ranks, [&](int rank, StreamView stream) {
        for (int round = 1; round <= 3; ++round) {
          enqueue(stream, "arrive", [&] { ++arrived; });
          enqueue_when(
              stream, "meet", [&, round] { return arrived >= round * ranks; },
              [&, rank] { ++seen[static_cast<std::size_t>(rank)]; });
        }
      });
      EXPECT_EQ(arrived, 3 * ranks);
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), 3 * ranks);
    });
}

/// Uses a short patience and restores the default afterwards.
class StuckStreams : public ::testing::Test {
 protected:
  StuckStreams() { set_patience(std::chrono::milliseconds(30)); }
  ~StuckStreams() override {
    set_patience(std::chrono::seconds(10));
    restart(seed());
  }
};

TEST_F(StuckStreams, AreListed) {
  const Stream waits, held;
  name_stream(waits.view(), "rank 3");
  name_stream(held.view(), "rank 4");
  Event event;
  enqueue_when(
      waits.view(), "all_gather of 7 bytes", [] { return false; }, [] {});
  event.record(waits.view());
  event.hold(held.view());
  const std::string message = message_of<EmulatorError>([&] { held.synchronize(); });
  EXPECT_TRUE(says(message, "stuck"));
  EXPECT_TRUE(says(message, "rank 3: all_gather of 7 bytes, and 1 more behind it"));
  EXPECT_TRUE(says(message, "rank 4: hold for an event of rank 3"));
  EXPECT_TRUE(says(message, "stream seed " + std::to_string(seed())));
}

TEST_F(StuckStreams, FailedWorkEndsEveryWait) {
  const Stream fails, other;
  name_stream(fails.view(), "rank 1");
  Steps steps;
  enqueue(fails.view(), "decode", [] { throw EmulatorError("reads too far"); });
  steps.queue(fails.view(), 1);
  for (const Stream* stream : {&fails, &fails})
    EXPECT_TRUE(says(message_of<EmulatorError>([&] { stream->synchronize(); }),
                     "rank 1, decode: reads too far"));
  EXPECT_THROW(other.synchronize(), EmulatorError);
  EXPECT_FALSE(run_one());
  steps.queue(other.view(), 1);
  EXPECT_FALSE(run_one());
  EXPECT_TRUE(steps.done().empty());
  restart(seed());
  steps.queue(fails.view(), 2);
  fails.synchronize();
  EXPECT_EQ(steps.done(), (std::vector<int>{2}));
}

TEST_F(StuckStreams, ARankThatFailsIsNamed) {
  const auto body = [](int rank, StreamView stream) {
    enqueue_when(
        stream, "meets nobody", [rank] { return rank == 0; }, [] {});
  };
  EXPECT_TRUE(
      says(message_of<EmulatorError>([&] { run_on_streams(2, body); }), "rank 1: meets nobody"));
}

TEST(EmulatedStreams, ARecordKeepsWhatWasQueued) {
  const Stream stream;
  name_stream(stream.view(), "compute");
  const PinnedBuffer from(16), to(16);
  const Record record;
  copy_bytes(to.pointer(), from.pointer(), 16, stream.view());
  zero_bytes(to.pointer(), 8, stream.view());
  const std::vector<std::string> lines{"compute: copy of 16 bytes", "compute: 8 zeros"};
  EXPECT_EQ(record.lines(), lines);
  stream.synchronize();
}

TEST(EmulatedStreams, CountersTellWhatAThreadAskedFor) {
  const Stream stream;
  const Counters before = counters();
  const std::uint64_t all_before = all_counters().allocations;
  std::thread([&] {
    const Buffer buffer(8, Memory::kDevice);
    zero_bytes(buffer.span().data(), 8, stream.view());
    stream.synchronize();
    EXPECT_EQ(counters().allocations, 1u);
    EXPECT_EQ(counters().launches, 1u);
    EXPECT_EQ(counters().host_waits, 1u);
  }).join();
  EXPECT_EQ(counters().allocations, before.allocations);
  EXPECT_EQ(all_counters().allocations, all_before + 1);
}

// Memory.

TEST(EmulatedStreams, CopiesAndZerosDoAsTheySay) {
  const Stream stream;
  const Buffer device(8, Memory::kDevice), other(8, Memory::kDevice);
  const PinnedBuffer host(8);
  std::memset(host.pointer(), 7, 8);
  copy_bytes(device.span().data(), host.pointer(), 4, stream.view());
  copy_bytes(other.span().data(), device.span().data(), 8, stream.view());
  zero_bytes(host.pointer(), 8, stream.view());
  copy_bytes(host.pointer(), other.span().data(), 4, stream.view());
  stream.synchronize();
  EXPECT_EQ(std::to_integer<int>(host.pointer()[3]), 7);
  EXPECT_EQ(std::to_integer<int>(host.pointer()[4]), 0);
}

TEST(EmulatedStreamsDeathTest, TheHostCannotTouchMemoryOfTheDevice) {
  const Buffer device(8, Memory::kDevice);
  zero_bytes(device.span().data(), 8, {});
  EXPECT_EQ(bytes_of(device.span().data(), 8), std::vector<std::byte>(8));
  volatile const std::byte* pointer = device.span().data();
  EXPECT_DEATH((void)*pointer, "the host touches memory of the emulated device");
}

TEST_F(StuckStreams, ACopyOfUnknownMemoryIsFound) {
  const Stream stream;
  const Buffer device(8, Memory::kDevice);
  std::byte pageable[8]{};
  copy_bytes(device.span().data(), pageable, 8, stream.view());
  EXPECT_TRUE(says(message_of<EmulatorError>([&] { stream.synchronize(); }), "nor pinned"));
}

TEST(EmulatedStreams, FreeingWaitsForWhatCanRun) {
  for_each_order(kStreamOrders, [] {
    const Stream stream;
    const PinnedBuffer host(8);
    std::memset(host.pointer(), 7, 8);
    {
      const Buffer device(8, Memory::kDevice);
      zero_bytes(device.span().data(), 8, stream.view());
      copy_bytes(host.pointer(), device.span().data(), 8, stream.view());
    }
    EXPECT_EQ(host.pointer()[7], std::byte{0});
  });
}

TEST_F(StuckStreams, MemoryThatIsFreedTooEarlyIsFound) {
  const Stream stream;
  const PinnedBuffer host(8);
  bool open = false;
  enqueue_when(
      stream.view(), "a rank is late", [&] { return open; }, [] {});
  {
    const Buffer device(8, Memory::kDevice);
    copy_bytes(device.span().data(), host.pointer(), 8, stream.view());
  }
  open = true;
  EXPECT_THROW(stream.synchronize(), EmulatorError);
}

TEST(EmulatedStreams, BelongToADevice) {
  const Stream first;
  const Buffer memory(8, Memory::kDevice);
  Event event;
  kernels::use_device(1);
  const Stream second;
  const auto checks_stream = [&] { kernels::check_stream(first.view()); };
  const auto checks_pointer = [&] { kernels::check_device_pointer(memory.span().data()); };
  EXPECT_TRUE(says(message_of<InvalidArgumentError>(checks_stream), "device 0, but the current"));
  EXPECT_TRUE(says(message_of<InvalidArgumentError>(checks_pointer), "device 0, but the current"));
  EXPECT_NO_THROW(kernels::check_stream(second.view()));
  EXPECT_THROW(event.record(second.view()), CudaError);
  std::thread([] { EXPECT_EQ(kernels::current_device(), 0); }).join();
  kernels::use_device(0);
  EXPECT_NO_THROW(checks_stream());
  EXPECT_THROW(kernels::use_device(99), CudaError);
}

}  // namespace
}  // namespace tersor::emulator
