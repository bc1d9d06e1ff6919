// The cost model in limiting cases with known answers.
#include "comm/tuning/model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace tersor {
namespace {

constexpr double kGbit = 8e-9;  // seconds per byte

CostFigures figures(double seconds_per_byte, double latency = 50e-6) {
  const WorkCost work{1e-7, 1e-10};
  return {.network = {.link = {latency, seconds_per_byte, 1e-6}},
          .codec = {work, work, work, work, work, work, work},
          .add_seconds_per_byte = 1e-10};
}

double seconds_of(const std::string& spec, Algorithm algorithm, std::size_t count, int ranks,
                  const CostFigures& costs) {
  const auto codec = make_codec(spec);
  return predict_allreduce(
             {.codec = codec.get(), .algorithm = algorithm, .count = count, .ranks = ranks}, costs)
      .seconds;
}

TEST(CostModel, SingleRankOrNoValuesCostNothing) {
  EXPECT_EQ(seconds_of("int8", Algorithm::kTwoShot, 1 << 20, 1, figures(kGbit)), 0);
  EXPECT_EQ(seconds_of("int8", Algorithm::kTwoShot, 0, 4, figures(kGbit)), 0);
}

TEST(CostModel, LargeGradientsAreBandwidthBound) {
  for (const int ranks : {2, 4, 8, 64}) {
    const std::size_t count = std::size_t{1} << 26;
    const double wire = 2.0 * (ranks - 1) / ranks * 4 * static_cast<double>(count) * kGbit;
    const double native = seconds_of("none", Algorithm::kNative, count, ranks, figures(kGbit));
    EXPECT_NEAR(native / wire, 1, 0.05) << ranks;
    const double two_shot = seconds_of("int8", Algorithm::kTwoShot, count, ranks, figures(kGbit));
    EXPECT_NEAR(two_shot / wire * 3.94, 1, 0.05) << ranks;
  }
}

TEST(CostModel, ReduceScatterCostsFirstHalfOfTwoShot) {
  const auto codec = make_codec("int8");
  for (const int ranks : {2, 4, 8}) {
    const CostQuery query{.codec = codec.get(), .count = 1 << 26, .ranks = ranks};
    const Prediction both = predict_allreduce(query, figures(kGbit));
    const Prediction half = predict_reduce_scatter(query, figures(kGbit));
    EXPECT_NEAR(half.sent_bytes / both.sent_bytes, 0.5, 0.01) << ranks;
    EXPECT_NEAR(half.seconds / both.seconds, 0.5, 0.03) << ranks;
  }
  const auto topk = make_codec("topk:density=0.01");
  const CostQuery whole{
      .codec = topk.get(), .algorithm = Algorithm::kOneShot, .count = 1 << 20, .ranks = 4};
  EXPECT_EQ(predict_reduce_scatter(whole, figures(kGbit)).seconds,
            predict_allreduce(whole, figures(kGbit)).seconds);
}

TEST(CostModel, LatencyDominatesShortGradients) {
  const double latency = 1e-3;
  const CostFigures slow = figures(1e-12, latency);
  EXPECT_NEAR(seconds_of("int8", Algorithm::kOneShot, 256, 4, slow), latency, 0.05 * latency);
  EXPECT_NEAR(seconds_of("int8", Algorithm::kTwoShot, 256, 4, slow), 2 * latency, 0.1 * latency);
  EXPECT_NEAR(seconds_of("none", Algorithm::kNative, 256, 3, slow), latency, 0.05 * latency);
  EXPECT_NEAR(seconds_of("none", Algorithm::kNative, 256, 4, slow), 2 * latency, 0.05 * latency);
  EXPECT_NEAR(seconds_of("none", Algorithm::kNative, 16384, 4, slow), 4 * latency, 0.1 * latency);
  EXPECT_NEAR(seconds_of("none", Algorithm::kNative, 65536, 4, slow), 6 * latency, 0.2 * latency);
}

TEST(CostModel, CostGrowsWithCountAndSlowerLinks) {
  for (const char* spec : {"none", "bf16", "int8", "topk:density=0.01"}) {
    const auto codec = make_codec(spec);
    for (const Algorithm algorithm : possible_algorithms(*codec, Dtype::kF32)) {
      double before = 0;
      for (std::size_t count = 512; count <= std::size_t{1} << 28; count *= 2) {
        const double now = seconds_of(spec, algorithm, count, 4, figures(kGbit));
        EXPECT_GE(now, before) << spec << " " << algorithm_name(algorithm) << " " << count;
        before = now;
      }
      const double base = seconds_of(spec, algorithm, 1 << 22, 4, figures(kGbit));
      EXPECT_GT(seconds_of(spec, algorithm, 1 << 22, 4, figures(2 * kGbit)), base) << spec;
      EXPECT_GT(seconds_of(spec, algorithm, 1 << 22, 4, figures(kGbit, 1e-3)), base) << spec;
      EXPECT_GT(seconds_of(spec, algorithm, 1 << 22, 8, figures(kGbit)), 0.9 * base) << spec;
    }
  }
}

TEST(CostModel, ReduceCostGrowsPerAdditionalPayload) {
  CostFigures sums = figures(kGbit);
  sums.codec = {.reduce = {1e-3, 0}, .reduce_more = {1e-5, 0}};
  const auto codec = make_codec("int8");
  const CostQuery query{.codec = codec.get(), .count = 1 << 16, .ranks = 16};
  EXPECT_DOUBLE_EQ(predict_allreduce(query, sums).work_seconds, 1e-3 + 15 * 1e-5);
}

TEST(CostModel, ChunkingOverlapsWorkWithTransfer) {
  CostFigures balanced = figures(kGbit);
  for (WorkCost* cost : fields_of(balanced.codec)) cost->per_value = 2e-9;
  const auto codec = make_codec("int8");
  CostQuery query{.codec = codec.get(), .count = std::size_t{1} << 24, .ranks = 4};
  const double cut = predict_allreduce(query, balanced).seconds;
  query.chunk_count = query.count;
  const Prediction whole = predict_allreduce(query, balanced);
  EXPECT_LT(cut, 0.8 * whole.seconds);
  EXPECT_GT(cut, whole.work_seconds);
}

TEST(CostModel, HierarchyIsFasterOnASharedLink) {
  CostFigures shared = figures(kGbit);
  shared.network.ranks_per_host = 8;
  shared.network.local = {1e-6, kGbit / 100, 1e-7};
  const auto codec = make_codec("int8");
  const CostQuery query{.codec = codec.get(), .count = 1 << 24, .ranks = 32};
  EXPECT_LT(predict_hierarchical(query, shared).seconds,
            0.5 * predict_allreduce(query, shared).seconds);
  const double wire = 2 * 0.75 * 1.02 * (1 << 24) * kGbit;  // load of each host's link
  EXPECT_NEAR(predict_hierarchical(query, shared).seconds / wire, 1, 0.15);
}

/// 25 Gbit/s, 10 us latency, 3 us per message.
CostFigures quick_hosts() {
  CostFigures quick = figures(8 / 25e9, 10e-6);
  quick.network.link.seconds_per_message = 3e-6;
  return quick;
}

/// The speedup of int8 over the fastest algorithm on raw values, direct or halving and doubling.
double gain(std::size_t count, int ranks) {
  const CostFigures quick = quick_hosts();
  const auto int8 = make_codec("int8"), none = make_codec("none");
  CostQuery query{.codec = int8.get(), .count = count, .ranks = ranks};
  const double encoded = predict_on_best_grid(query, quick).prediction.seconds;
  query.codec = none.get();
  query.algorithm = Algorithm::kNative;
  return std::min(predict_allreduce(query, quick).seconds,
                  predict_halving_doubling(query, quick).seconds) /
         encoded;
}

// Messages cost little on grids, and raw values stay slower with every algorithm.
TEST(CostModel, SpeedupHoldsForManyRanks) {
  for (const int ranks : {32, 64, 256, 1024, 4096}) {
    EXPECT_GT(gain(std::size_t{1} << 26, ranks), ranks == 32 ? 2.5 : 3.4) << ranks;
    EXPECT_GT(gain(std::size_t{1} << 18, ranks), 1.4) << ranks;
  }
}

// 512 units on 1,024 ranks: half of the shards are empty.
TEST(CostModel, EmptyShardsDoNotInflateTraffic) {
  const auto int8 = make_codec("int8");
  const CostQuery query{.codec = int8.get(), .count = 1 << 18, .ranks = 1024, .dims = {32, 32}};
  EXPECT_LT(predict_allreduce(query, quick_hosts()).sent_bytes, 2.5 * (1 << 18));
}

std::vector<int> best_dims(std::size_t count, int ranks, double error_growth = 2) {
  const auto int8 = make_codec("int8");
  return predict_on_best_grid(
             {.codec = int8.get(), .count = count, .ranks = ranks, .error_growth = error_growth},
             quick_hosts())
      .dims;
}

TEST(CostModel, ChoosesMoreDimensionsWhenMessagesDominate) {
  for (const int ranks : {2, 8, 32}) EXPECT_EQ(best_dims(1 << 18, ranks), std::vector{ranks});
  EXPECT_EQ(best_dims(1 << 18, 1024), (std::vector{16, 8, 8}));
  EXPECT_EQ(best_dims(1 << 18, 1024, 1.5), (std::vector{32, 32}));
  EXPECT_EQ(best_dims(1 << 18, 1024, 1), std::vector{1024});
  EXPECT_EQ(best_dims(1 << 18, 4096), (std::vector{16, 16, 16}));
  EXPECT_GT(best_dims(1 << 18, 251).size(), 1u);
}

TEST(CostModel, KeepsGivenDimensions) {
  const auto int8 = make_codec("int8");
  const CostQuery query{
      .codec = int8.get(), .count = 1 << 18, .ranks = 256, .dims = {256}, .error_growth = 1};
  const GridPrediction direct = predict_on_best_grid(query, quick_hosts());
  EXPECT_EQ(direct.dims, std::vector{256});
  EXPECT_EQ(direct.prediction.seconds, predict_allreduce(query, quick_hosts()).seconds);
}

// One of 37 ranks owns nothing: the 18 ranks of a group receive all of its values and send back the
// whole sum.
TEST(CostModel, RankWithoutPartsAddsCostToItsGroup) {
  const auto int8 = make_codec("int8");
  CostQuery query{.codec = int8.get(), .count = 1 << 26, .ranks = 36, .dims = {18, 2}};
  const double all_own = predict_allreduce(query, figures(kGbit)).seconds;
  query.ranks = 37;
  EXPECT_NEAR(predict_allreduce(query, figures(kGbit)).seconds / all_own,
              1 + 2.0 / 18 / (2 * 35.0 / 36), 0.01);
}

// One-shot sends a list to every rank. The traffic of two-shot is independent of the number of
// ranks.
TEST(CostModel, ManyRanksPreferDenseCodecToSparse) {
  const auto quickest = [](std::vector<std::string> specs, int ranks) {
    return std::ranges::min(specs, {}, [&](const std::string& spec) {
      const auto codec = make_codec(spec);
      double best = HUGE_VAL;
      for (const Algorithm algorithm : possible_algorithms(*codec, Dtype::kF32))
        best = std::min(
            best,
            predict_on_best_grid(
                {.codec = codec.get(), .algorithm = algorithm, .count = 1 << 24, .ranks = ranks},
                figures(kGbit))
                .prediction.seconds);
      return best;
    });
  };
  const std::string sparse = "topk:density=0.01", blocks = "blocktopk:density=0.01";
  for (const int ranks : {2, 4, 16}) EXPECT_EQ(quickest({"none", "int8", sparse}, ranks), sparse);
  for (const int ranks : {64, 256, 1024}) {
    EXPECT_EQ(quickest({"none", "int8", sparse}, ranks), "int8");
    EXPECT_EQ(quickest({"none", "int8", sparse, blocks}, ranks), blocks);
  }
}

TEST(CostModel, HalvingDoublingCostsLatencyAndBytes) {
  const CostFigures figures_{.network = {.link = {1e-3, 1e-9}}};
  CostQuery query{.count = std::size_t{1} << 20, .ranks = 8};
  const double wire = 2 * 7.0 / 8 * 4 * (1 << 20) * 1e-9;
  EXPECT_NEAR(predict_halving_doubling(query, figures_).seconds, 6e-3 + wire, 1e-6);
  query.ranks = 9;  // the ninth rank sends all values to another rank and receives the sum
  EXPECT_NEAR(predict_halving_doubling(query, figures_).seconds,
              8e-3 + wire + 2 * 4 * (1 << 20) * 1e-9, 1e-6);
}

TEST(CostModel, RejectsInvalidFiguresAndRankCount) {
  for (const double nonsense : {-1.0, std::nan(""), HUGE_VAL}) {
    EXPECT_THROW(seconds_of("int8", Algorithm::kTwoShot, 512, 4, figures(nonsense)),
                 InvalidArgumentError);
    EXPECT_THROW(seconds_of("int8", Algorithm::kTwoShot, 512, 4, figures(kGbit, nonsense)),
                 InvalidArgumentError);
  }
  EXPECT_THROW(seconds_of("int8", Algorithm::kTwoShot, 512, 0, figures(kGbit)),
               InvalidArgumentError);
}

}  // namespace
}  // namespace tersor
