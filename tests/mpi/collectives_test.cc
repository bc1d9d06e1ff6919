// Collectives on processes give the same bits as on threads.
#include <gtest/gtest.h>
#include <mpi.h>
#include <tersor/mpi.h>
#include <tersor/tersor.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "tests/comm/every_collective.h"
#include "tests/comm/running_ahead.h"
#include "tests/support/specs.h"

namespace tersor::testing {
namespace {

constexpr std::size_t kCount = 300'001;

void expect_same_bits(const Values& one, const Values& other, std::string_view what) {
  ASSERT_EQ(one.size(), other.size());
  EXPECT_EQ(std::memcmp(one.data(), other.data(), one.size() * sizeof(float)), 0) << what;
}

class MpiCollectives : public ::testing::Test {
 protected:
  /// Expects equal values of `call` between processes and between threads.
  void expect_bits_of_threads(std::size_t count, std::string_view what,
                              const std::function<void(Transport&, Values&)>& call) {
    const auto inputs = gradients(transport_->ranks(), count);
    const auto own = static_cast<std::size_t>(transport_->rank());
    Values values = inputs[own];
    call(*transport_, values);
    expect_same_bits(values, on_ranks(inputs, call)[own], what);
  }

  const std::unique_ptr<Transport> transport_ = make_mpi_transport(MPI_COMM_WORLD);
};

TEST_F(MpiCollectives, AllreduceMatchesThreads) {
  for (const CodecInfo& info : test::flat_codecs())
    for (const std::string& codec : test::example_specs(info))
      for (const std::size_t chunk_count : {kDefaultChunkCount, std::size_t{50'000}})
        expect_bits_of_threads(kCount, codec, [&](Transport& ranks, Values& values) {
          allreduce(ranks, values, {.codec = codec, .chunk_count = chunk_count});
        });
}

/// Sample-weighted steps with a different number of samples per rank, including 0.
Values weighed_steps(Transport& transport, const Values& gradient) {
  GradientReducer reducer(transport, {.codec = "int8+ef", .weighted = Weighted::kOn});
  Values values = gradient, all;
  reducer.add("w", values, 1, values.size());
  for (int step = 0; step < 3; ++step) {
    values = gradient;
    reducer.weigh((transport.rank() + step) % transport.ranks());
    reducer.ready("w");
    reducer.wait();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_F(MpiCollectives, WeightedStepsMatchThreads) {
  if (transport_->ranks() < 2) GTEST_SKIP() << "on 2 or more ranks";
  expect_bits_of_threads(50'001, "int8+ef", [](Transport& ranks, Values& values) {
    values = weighed_steps(ranks, values);
  });
}

TEST_F(MpiCollectives, RankThatRunsAheadUsesBoundedMemory) {
  if (transport_->ranks() < 3) GTEST_SKIP() << "on 3 or more ranks";
  RunningAhead(*transport_).expect_bounded();
}

TEST_F(MpiCollectives, GridsMatchThreads) {
  const int ranks = transport_->ranks();
  if (ranks < 4 || ranks % 2 != 0) GTEST_SKIP() << "on 4, 6, … ranks";
  const int dims[] = {2, ranks / 2};
  for (const char* codec : {"none", "int8:rounding=stochastic", "blocktopk"})
    expect_bits_of_threads(kCount, codec, [&](Transport& any, Values& values) {
      allreduce(
          any, values,
          {.codec = codec, .algorithm = Algorithm::kTwoShot, .dims = dims, .chunk_count = 50'000});
    });
}

TEST_F(MpiCollectives, AllCollectivesMatchThreads) {
  for (const std::size_t count : {std::size_t{6000}, kCount})
    for (const char* codec : {"none", "int8:rounding=stochastic", "blocktopk"})
      expect_bits_of_threads(count, codec, [&](Transport& ranks, Values& values) {
        values = every_collective(ranks, values, codec);
      });
}

/// Runs some steps of a reducer with feedback. Returns the last gradients, concatenated.
Values reduce_steps(Transport& transport, const std::string& codec, ProgressBy progress) {
  constexpr std::array<std::size_t, 3> kCounts = {70'000, 5'000, 130};
  std::vector<Values> layers;
  for (const std::size_t count : kCounts) layers.emplace_back(count);
  GradientReducer reducer(transport, {.codec = codec, .progress = progress});
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    reducer.add("layer" + std::to_string(layer), layers[layer], 10, kCounts[layer] / 10);
  for (std::uint64_t step = 0; step < 4; ++step) {
    for (std::size_t layer = layers.size(); layer-- > 0;) {
      layers[layer] = gaussian(
          kCounts[layer], step * 100 + layer * 10 + static_cast<std::uint64_t>(transport.rank()));
      reducer.ready("layer" + std::to_string(layer), layers[layer]);
      if (progress == ProgressBy::kCaller) reducer.progress();
    }
    reducer.wait();
  }
  Values all;
  for (const Values& layer : layers) append(all, layer);
  return all;
}

TEST_F(MpiCollectives, ReducerMatchesThreads) {
  for (const CodecInfo& info : codecs())
    for (const ProgressBy progress : {ProgressBy::kThread, ProgressBy::kCaller})
      expect_bits_of_threads(1, info.name, [&](Transport& ranks, Values& values) {
        const bool on_threads = &ranks != transport_.get();
        values = reduce_steps(ranks, std::string(info.name) + "+ef",
                              on_threads ? ProgressBy::kThread : progress);
      });
}

// One rank uses another instruction set; the bytes must be equal.
TEST_F(MpiCollectives, MixedInstructionSetsGiveEqualBits) {
  for (const char* codec : {"int8:rounding=stochastic", "hadamard", "blocktopk"}) {
    Values usual = gaussian(kCount, static_cast<std::uint64_t>(transport_->rank())), mixed = usual;
    allreduce(*transport_, usual, {.codec = codec});
    if (transport_->rank() == 0) force_isa(available_isas().front());
    allreduce(*transport_, mixed, {.codec = codec});
    force_isa(std::nullopt);
    expect_same_bits(mixed, usual, codec);
  }
}

}  // namespace
}  // namespace tersor::testing
