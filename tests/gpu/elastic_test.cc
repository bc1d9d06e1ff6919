// Elastic reducers with device gradients: after a loss, the remaining ranks get the same bits as on
// the host.
#include "tests/device_comm/steps.h"

#include <tersor/inprocess.h>
#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace tersor::test {
namespace {

constexpr int kDeviceRanks = 4, kLostRank = 2;
constexpr std::size_t kLeftCount = 9'000;

/// One rank: two steps, the loss of another rank, then two more steps with the remaining ranks.
Values train_through_a_loss(Transport& transport, const Location& location) {
  const auto rank = static_cast<std::uint64_t>(transport.rank());
  PlacedValues gradient(kLeftCount, Dtype::kF32, location);
  GradientReducer reducer(transport,
                          {.codec = "int8+ef", .elastic = Elastic::kOn, .stream = location.stream});
  reducer.add("w", gradient.span(), 90, 100);
  const auto step = [&](std::uint64_t index) {
    gradient.write(testing::gaussian(kLeftCount, index * 100 + rank));
    reducer.ready("w");
    reducer.wait();
    return gradient.read();
  };
  Values all;
  for (std::uint64_t index = 0; index < 2; ++index) append(all, step(index));
  if (transport.rank() == kLostRank) return {};
  try {
    step(2);
    ADD_FAILURE() << "no rank is lost";
  } catch (const RanksLostError& lost) {
    EXPECT_EQ(lost.members(), (std::vector<int>{0, 1, 3}));
    EXPECT_EQ(lost.last_step(), 2u);
  }
  reducer.resume();
  for (std::uint64_t index = 2; index < 4; ++index) append(all, step(index));
  return all;
}

/// The results of each rank. A rank disconnects at the end of its training.
std::vector<Values> on_mortal_ranks(Memory memory) {
  auto transports = make_inprocess_transports(kDeviceRanks);
  std::vector<Values> all(kDeviceRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kDeviceRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = std::move(transports[static_cast<std::size_t>(rank)]);
      Values& values = all[static_cast<std::size_t>(rank)];
      if (memory == Memory::kHost) {
        values = train_through_a_loss(*transport, {});
        return;
      }
      const Stream stream;
      values = train_through_a_loss(*transport, {memory, stream.view()});
      stream.synchronize();
    });
  threads.clear();
  return all;
}

TEST(ElasticOnDevice, RemainingRanksContinueWithHostResults) {
  const auto found = on_mortal_ranks(Memory::kDevice), wanted = on_mortal_ranks(Memory::kHost);
  ASSERT_EQ(wanted[0].size(), 4 * kLeftCount);
  EXPECT_EQ(wanted[1], wanted[0]);
  for (const std::size_t rank : {0u, 1u, 3u}) EXPECT_EQ(found[rank], wanted[0]) << rank;
}

}  // namespace
}  // namespace tersor::test
