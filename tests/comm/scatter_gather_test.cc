// reduce_scatter and allgather with equal shards provided by the caller.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

namespace tersor::testing {
namespace {

double allowed_error(const std::string& codec) {
  if (codec.starts_with("int4") || codec.starts_with("nvfp4")) return 3e-2;
  if (codec.starts_with("hadamard")) return 0.1;
  if (codec.find("density=0.1") != std::string::npos) return 1.0;
  return 2e-4;
}

class Shards : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Shards, ReduceScatterReturnsOwnShardOfTheSum) {
  const auto& [codec, ranks] = GetParam();
  for (const std::size_t count : {0ul, 1ul, 300ul, 5003ul}) {
    const auto inputs = gradients(ranks, count * static_cast<std::size_t>(ranks));
    const auto sum = exact_sum(inputs);
    std::vector<Values> shards(static_cast<std::size_t>(ranks), Values(count, -1.0f));
    run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      reduce_scatter(transport, inputs[rank], shards[rank], {.codec = codec, .chunk_count = 4096});
    });
    Values found;
    for (const Values& shard : shards) found.insert(found.end(), shard.begin(), shard.end());
    EXPECT_LE(squared_error(found, sum), allowed_error(codec)) << count;
  }
}

TEST_P(Shards, AllgatherGivesAllRanksTheSameBits) {
  const auto& [codec, ranks] = GetParam();
  const std::size_t count = 5003;
  const auto inputs = gradients(ranks, count);
  std::vector<Values> outputs(static_cast<std::size_t>(ranks),
                              Values(count * static_cast<std::size_t>(ranks)));
  run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    allgather(transport, inputs[rank], outputs[rank], {.codec = codec, .chunk_count = 4096});
  });
  std::vector<double> wanted;
  for (const Values& input : inputs) wanted.insert(wanted.end(), input.begin(), input.end());
  for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
  EXPECT_LE(squared_error(outputs.front(), wanted), allowed_error(codec));
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Shards,
    ::testing::Combine(::testing::Values("none", "bf16", "int8", "int4", "hadamard:bits=4",
                                         "topk:density=1", "topk:density=0.1",
                                         "blocktopk:density=0.1", "int8:result=nvfp4",
                                         "nvfp4:result=int8"),
                       ::testing::Values(1, 2, 3, 4, 8)));

TEST(ReduceScatter, ResultsPlusResidualsEqualSumOfInputs) {
  constexpr int kRanks = 3, kSteps = 5;
  constexpr std::size_t kShard = 2000, kCount = kShard * kRanks;
  for (const std::string codec :
       {"int4+ef", "hadamard+ef", "topk:density=0.02+ef", "blocktopk+ef"}) {
    std::vector<Values> residuals(kRanks, Values(kCount)), shards(kRanks, Values(kShard));
    std::vector<StateWords> words(kRanks);
    std::vector<double> wanted(kCount, 0.0), sent(kCount, 0.0);
    for (int step = 0; step < kSteps; ++step) {
      const auto inputs = gradients(kRanks, kCount, static_cast<std::uint64_t>(step) + 50);
      run_ranks(kRanks, {}, [&](Transport& transport) {
        const auto rank = static_cast<std::size_t>(transport.rank());
        const CollectiveState state{residuals[rank], {}, &words[rank]};
        reduce_scatter(transport, inputs[rank], shards[rank], {.codec = codec, .state = &state});
      });
      const auto sum = exact_sum(inputs);
      for (std::size_t i = 0; i < kCount; ++i) {
        wanted[i] += sum[i];
        sent[i] += shards[i / kShard][i % kShard];
      }
    }
    for (std::size_t i = 0; i < kCount; ++i) {
      for (const Values& residual : residuals) sent[i] += residual[i];
      ASSERT_NEAR(sent[i], wanted[i], 1e-4) << codec;
    }
  }
}

TEST(ReduceScatter, MismatchedShardsAreRejected) {
  run_ranks(2, {}, [](Transport& transport) {
    Values input(1001), shard(500);
    EXPECT_THROW(reduce_scatter(transport, input, shard), InvalidArgumentError);
    std::vector<Bf16> half(500);
    Values whole(1000);
    EXPECT_THROW(allgather(transport, half, whole), InvalidArgumentError);
  });
}

}  // namespace
}  // namespace tersor::testing
