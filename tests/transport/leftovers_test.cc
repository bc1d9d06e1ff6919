// Resources left by channels, splits and messages after all ranks have left: none.
#include <cstddef>
#include <filesystem>

#include "tests/support/heap.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

namespace fs = std::filesystem;

class TransportLeftovers : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportLeftovers, ::testing::ValuesIn(fabrics()), fabric_name);

std::size_t entries_of(const char* folder) {
  const fs::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Resources of this process.
struct Held {
  std::size_t descriptors = entries_of("/proc/self/fd");
  std::size_t threads = entries_of("/proc/self/task");
  std::size_t bytes = testing::heap_bytes();
};

/// The kernel lists a joined thread until the exit is complete. Waits up to a second.
std::size_t threads_at_most(std::size_t expected) {
  std::size_t threads = Held().threads;
  for (int i = 0; threads > expected && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    threads = Held().threads;
  }
  return threads;
}

/// Waits, sends a late message, and sends a message without a receiver.
void use(Transport& transport) {
  const auto own = pattern(1000, transport.rank(), 0), unread = pattern(20'000, 0, 0);
  const int next = (transport.rank() + 1) % transport.ranks();
  Operation operation = operation_of(transport);
  if (next != transport.rank())
    transport.send(operation_of(transport, "unread"), next, unread).wait_synchronize();
  if (transport.rank() == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
  transport.all_gather(operation, own, own.size()).wait_synchronize();
}

/// The resources of this process while all ranks are idle.
Held held_after(Transport& transport, int channels) {
  for (int channel = 0; channel < channels; ++channel) {
    use(*transport.channel());
    use(*transport.split(std::vector{transport.rank()}));
  }
  transport.barrier(operation_of(transport)).wait_synchronize();
  const Held held;
  transport.barrier(operation_of(transport)).wait_synchronize();
  return held;
}

// Ranks may be a channel apart, and the number of resources varies slightly.
TEST_P(TransportLeftovers, ManyChannelsDoNotAccumulateResources) {
  constexpr std::size_t kFewDescriptors = 24, kFewBytes = 400'000;
  constexpr int kChannels = 300;
  run(3, [&](Transport& transport) {
    held_after(transport, 10);
    const Held before = held_after(transport, 10), after = held_after(transport, kChannels);
    EXPECT_LE(after.descriptors, before.descriptors + kFewDescriptors);
    EXPECT_LE(after.threads, before.threads);
    EXPECT_LE(after.bytes, before.bytes + kFewBytes);
  });
}

// The network's own memory is not checked.
TEST_P(TransportLeftovers, ManyTransportsLeakNoDescriptorOrThread) {
  const auto worlds = [&](int count) {
    for (int world = 0; world < count; ++world) run(3, use);
    return Held();
  };
  const Held before = worlds(2), after = worlds(20);
  EXPECT_LE(after.descriptors, before.descriptors);
  EXPECT_LE(threads_at_most(before.threads), before.threads);
}

}  // namespace
}  // namespace tersor::test
