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

TEST(MpiCollectives, AllreduceHasTheBitsOfThreads) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  const auto inputs = gradients(transport.ranks(), kCount);
  const auto own = static_cast<std::size_t>(transport.rank());
  for (const CodecInfo& info : test::flat_codecs())
    for (const std::string& codec : test::example_specs(info))
      for (const std::size_t chunk_count : {kDefaultChunkCount, std::size_t{50'000}}) {
        const CollectiveOptions options{.codec = codec, .chunk_count = chunk_count};
        const auto wanted = on_ranks(inputs, [&](Transport& threads, Values& values) {
          allreduce(threads, values, options);
        });
        Values values = inputs[own];
        allreduce(transport, values, options);
        expect_same_bits(values, wanted[own], codec);
      }
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

TEST(MpiCollectives, WeighedStepsHaveTheBitsOfThreads) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  if (transport.ranks() < 2) GTEST_SKIP() << "on 2 or more ranks";
  const auto inputs = gradients(transport.ranks(), 50'001);
  const auto own = static_cast<std::size_t>(transport.rank());
  const auto wanted = on_ranks(
      inputs, [](Transport& threads, Values& values) { values = weighed_steps(threads, values); });
  expect_same_bits(weighed_steps(transport, inputs[own]), wanted[own], "int8+ef");
}

TEST(MpiCollectives, WhoRunsAheadTakesLittleMemory) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  if (transport.ranks() < 3) GTEST_SKIP() << "on 3 or more ranks";
  RunningAhead(transport).expect_bounded();
}

TEST(MpiCollectives, GridsHaveTheBitsOfThreads) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  if (transport.ranks() < 4 || transport.ranks() % 2 != 0) GTEST_SKIP() << "on 4, 6, … ranks";
  const int dims[] = {2, transport.ranks() / 2};
  const auto inputs = gradients(transport.ranks(), kCount);
  const auto own = static_cast<std::size_t>(transport.rank());
  for (const char* codec : {"none", "int8:rounding=stochastic", "blocktopk"}) {
    const CollectiveOptions options{
        .codec = codec, .algorithm = Algorithm::kTwoShot, .dims = dims, .chunk_count = 50'000};
    const auto wanted = on_ranks(
        inputs, [&](Transport& threads, Values& values) { allreduce(threads, values, options); });
    Values values = inputs[own];
    allreduce(transport, values, options);
    expect_same_bits(values, wanted[own], codec);
  }
}

TEST(MpiCollectives, AllHaveTheBitsOfThreads) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  const auto own = static_cast<std::size_t>(transport.rank());
  for (const std::size_t count : {std::size_t{6000}, kCount})
    for (const char* codec : {"none", "int8:rounding=stochastic", "blocktopk"}) {
      const auto inputs = gradients(transport.ranks(), count);
      const auto wanted = on_ranks(inputs, [&](Transport& threads, Values& values) {
        values = every_collective(threads, values, codec);
      });
      expect_same_bits(every_collective(transport, inputs[own], codec), wanted[own], codec);
    }
}

/// Runs some steps of a reducer with feedback. Returns the last gradients.
std::vector<Values> reduce_steps(Transport& transport, const std::string& codec,
                                 ProgressBy progress) {
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
  return layers;
}

void expect_same_steps(Transport& transport, const std::string& codec) {
  const auto own = static_cast<std::size_t>(transport.rank());
  std::vector<std::vector<Values>> wanted(static_cast<std::size_t>(transport.ranks()));
  run_ranks(transport.ranks(), {}, [&](Transport& threads) {
    wanted[static_cast<std::size_t>(threads.rank())] =
        reduce_steps(threads, codec, ProgressBy::kThread);
  });
  for (const ProgressBy progress : {ProgressBy::kThread, ProgressBy::kCaller}) {
    const auto layers = reduce_steps(transport, codec, progress);
    for (std::size_t layer = 0; layer < layers.size(); ++layer)
      expect_same_bits(layers[layer], wanted[own][layer], codec);
  }
}

TEST(MpiCollectives, ReducerHasTheBitsOfThreads) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  for (const CodecInfo& info : codecs())
    expect_same_steps(transport, std::string(info.name) + "+ef");
}

// One rank uses another instruction set; the bytes must be equal.
TEST(MpiCollectives, RanksMayHaveOtherInstructionSets) {
  const auto owned_transport = make_mpi_transport(MPI_COMM_WORLD);
  Transport& transport = *owned_transport;
  const auto inputs = gradients(transport.ranks(), kCount);
  const auto own = static_cast<std::size_t>(transport.rank());
  for (const char* codec : {"int8:rounding=stochastic", "hadamard", "blocktopk"}) {
    const CollectiveOptions options{.codec = codec};
    Values usual = inputs[own], mixed = inputs[own];
    allreduce(transport, usual, options);
    if (transport.rank() == 0) force_isa(available_isas().front());
    allreduce(transport, mixed, options);
    force_isa(std::nullopt);
    expect_same_bits(mixed, usual, codec);
  }
}

}  // namespace
}  // namespace tersor::testing
