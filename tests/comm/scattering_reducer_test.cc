// The GradientReducer with sharded parameters.
#include "tests/comm/scattering.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

constexpr int kSteps = 3;

/// The results of some steps on every rank.
std::vector<Values> train(int ranks, const ReducerOptions& options) {
  std::vector<Values> results(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    Model model(transport, options);
    for (int step = 0; step < kSteps; ++step) {
      const Values found = model.step(step);
      Values& all = results[static_cast<std::size_t>(transport.rank())];
      all.insert(all.end(), found.begin(), found.end());
    }
  });
  return results;
}

/// Equal results by the collective, parameter by parameter.
Values by_collective(Transport& transport, const Model& model, const ReducerOptions& options) {
  const std::size_t layers = std::size(kLayers);
  std::vector<Values> residuals(layers);
  std::vector<StateWords> words(layers);
  Values all;
  for (int step = 0; step < kSteps; ++step)
    for (std::size_t i = 0; i < layers; ++i) {
      const Values gradient = model.gradient(i, step);
      Values shard(model.shards[i].size());
      residuals[i].resize(options.hosts.empty() ? gradient.size()
                                                : scattered_count(gradient.size(), options.hosts));
      const CollectiveState state{residuals[i], {}, &words[i]};
      const bool small = kLayers[i].columns == 0;
      reduce_scatter(transport, gradient, shard,
                     {.codec = small ? "bf16" : options.rules.back().codec,
                      .reduction = Reduction::kMean,
                      .algorithm = options.algorithm,
                      .hosts = options.hosts,
                      .state = &state,
                      .parameter = static_cast<std::uint32_t>(i),
                      .seed = options.seed,
                      .chunk_count = options.chunk_count});
      all.insert(all.end(), shard.begin(), shard.end());
    }
  return all;
}

class Scattering : public ::testing::TestWithParam<std::tuple<std::string, RanksOnHosts>> {};

TEST_P(Scattering, MatchesCollectiveBitwise) {
  const auto& [codec, setup] = GetParam();
  const ReducerOptions options = options_of(codec, setup);
  const auto found = train(setup.ranks, options);
  run_ranks(setup.ranks, {}, [&](Transport& transport) {
    const Model model(transport, options);
    EXPECT_EQ(by_collective(transport, model, options),
              found[static_cast<std::size_t>(transport.rank())]);
  });
}

TEST_P(Scattering, IsIndependentOfProgressModeAndMessageSize) {
  const auto& [codec, setup] = GetParam();
  const auto wanted = train(setup.ranks, options_of(codec, setup));
  ReducerOptions other = options_of(codec, setup);
  other.progress = ProgressBy::kCaller;
  EXPECT_EQ(train(setup.ranks, other), wanted);
  other.bucket_bytes = 16;
  other.chunk_count = 1 << 20;
  EXPECT_EQ(train(setup.ranks, other), wanted);
}

// A host sends the residual with the sum even if a rank has no gradient. Therefore the test skips
// hosts.
TEST_P(Scattering, NonContributingParameterKeepsItsResidual) {
  const auto& [codec, setup] = GetParam();
  if (!setup.hosts.empty()) return;
  run_ranks(setup.ranks, {}, [&, &codec = codec, &setup = setup](Transport& transport) {
    Model model(transport, options_of(codec, setup));
    model.step(0);
    const double before = model.reducer.residual_norms()[2];
    model.step(1, 2);
    EXPECT_EQ(model.reducer.residual_norms()[2], before);
    for (const float value : model.shards[2]) ASSERT_EQ(value, 0.0f);
    model.step(2);
    const double after = model.reducer.residual_norms()[2];
    EXPECT_EQ(after != before, codec.ends_with("+ef") && transport.ranks() > 1);
  });
}

TEST_P(Scattering, DiscardedStepDoesNotChangeState) {
  const auto& [codec, setup] = GetParam();
  run_ranks(setup.ranks, {}, [&, &codec = codec, &setup = setup](Transport& transport) {
    ReducerOptions options = options_of(codec, setup);
    options.transactional = Transactional::kOn;
    Model model(transport, options), plain(transport, options);
    model.step(0);
    plain.step(0);
    model.step(9);
    model.reducer.discard_step();
    EXPECT_EQ(model.step(1), plain.step(1));
  });
}

TEST_P(Scattering, ContinuesFromExactState) {
  const auto& [codec, setup] = GetParam();
  run_ranks(setup.ranks, {}, [&, &codec = codec, &setup = setup](Transport& transport) {
    const ReducerOptions options = options_of(codec, setup);
    Model first(transport, options), second(transport, options);
    first.step(0);
    second.reducer.load_state(first.reducer.save_state());
    EXPECT_EQ(second.step(1), first.step(1));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Scattering,
    ::testing::Combine(::testing::Values("none", "int8", "int8+ef", "int4:rounding=stochastic+ef",
                                         "hadamard:bits=2+ef", "blocktopk:density=0.05+ef",
                                         "topk:density=0.05+ef"),
                       ::testing::Values(RanksOnHosts{1}, RanksOnHosts{2}, RanksOnHosts{3},
                                         RanksOnHosts{5}, RanksOnHosts{4, {0, 1, 1, 0}},
                                         RanksOnHosts{6, {0, 1, 0, 1, 0, 1}},
                                         RanksOnHosts{6, {0, 0, 1, 1, 2, 2}})));

TEST(ScatteringReducer, SharesMessagesExceptWithAllreducedParameters) {
  run_ranks(2, {}, [](Transport& transport) {
    GradientReducer reducer(transport, {.codec = "bf16"});
    std::vector<Values> gradients(4, Values(100, 1.0f)), shards(4, Values(50));
    for (const char* name : {"a", "b", "c", "d"})
      reducer.add(
          name, {.count = 100,
                 .collective = *name < 'c' ? Collective::kReduceScatter : Collective::kAllreduce});
    for (int step = 0; step < 2; ++step) {
      reducer.ready("a", gradients[0], shards[0]);
      reducer.ready("b", gradients[1], shards[1]);
      reducer.ready("c", gradients[2]);
      reducer.ready("d", gradients[3]);
      reducer.wait();
    }
    EXPECT_EQ(shards[1], Values(50, 1.0f));
    EXPECT_EQ(gradients[3], Values(100, 1.0f));
    const std::string text = reducer.explain();
    EXPECT_NE(text.find("4 parameters in 2 messages"), std::string::npos) << text;
    EXPECT_NE(text.find("a: 100 values of f32 as bf16 (fewer than 4096 values), reduce-scatter\n"),
              std::string::npos)
        << text;
  });
}

TEST(ScatteringReducer, SendsBeforeAllParametersAreReady) {
  run_ranks(2, {}, [](Transport& transport) {
    Values first(20000, 1.0f), second(20000, 2.0f), one(10000), two(10000);
    GradientReducer reducer(transport, {.codec = "int8", .bucket_bytes = 1});
    for (const char* name : {"first", "second"})
      reducer.add(
          name,
          {.count = 20000, .rows = 200, .columns = 100, .collective = Collective::kReduceScatter});
    for (int step = 0; step < 2; ++step) {
      const ReducerHandle early = reducer.ready("first", first, one);
      if (step == 1) {
        early.wait();  // the second parameter is not ready yet
        for (const float value : one) ASSERT_NEAR(value, 1.0f, 0.01f);
      }
      reducer.ready("second", second, two);
      reducer.wait();
    }
    for (const float value : two) ASSERT_NEAR(value, 2.0f, 0.02f);
  });
}

TEST(ScatteringReducer, ShardMayAliasTheGradient) {
  run_ranks(3, {}, [](Transport& transport) {
    Values gradient = gaussian(9000, static_cast<std::uint64_t>(transport.rank()));
    Values copy = gradient, shard(3000);
    ReducerOptions options{.rules = {{"*", "int8"}}, .chunk_count = 2048};
    GradientReducer apart(transport, options), within(transport, options);
    for (GradientReducer* reducer : {&apart, &within})
      reducer->add("w", {.count = 9000, .collective = Collective::kReduceScatter});
    apart.ready("w", gradient, shard);
    apart.wait();
    const auto own = static_cast<std::size_t>(transport.rank()) * 3000;
    within.ready("w", copy, ValueSpan(copy).subspan(own, 3000));
    within.wait();
    for (std::size_t i = 0; i < 3000; ++i) ASSERT_EQ(copy[own + i], shard[i]);
  });
}

TEST(ScatteringReducer, AutoUsesReduceScatterCostPrediction) {
  run_ranks(4, {}, [](Transport& transport) {
    constexpr double kSlow = 1e-3;  // the measured times of a busy machine do not matter
    for (const double seconds_per_byte : {kSlow, 1e-9, 1e-15}) {
      Tuner tuner(transport, {.link = LinkFigures{.seconds_per_byte = seconds_per_byte}});
      GradientReducer reducer(transport, {.codec = "auto", .tuner = &tuner});
      reducer.add("w", {.count = 1 << 16,
                        .rows = 256,
                        .columns = 256,
                        .collective = Collective::kReduceScatter});
      Values gradient(1 << 16, 1.0f), shard(1 << 14);
      reducer.ready("w", gradient, shard);
      reducer.wait();
      for (const float value : shard) EXPECT_NEAR(value, 1.0f, 0.01f);
      const std::string codec = reducer.parameter_statistics()[0].codec;
      const std::size_t message = ReducerOptions{}.bucket_bytes / sizeof(float);
      EXPECT_EQ(codec, tuner.predict(Dtype::kF32, message, Collective::kReduceScatter).codec);
      if (seconds_per_byte == kSlow) EXPECT_EQ(codec, "int8");
    }
  });
}

// 61 rows on 4 ranks are padded to 64 rows, and the padded count exceeds 4,096 values.
TEST(ScatteringReducer, PaddingDoesNotCountTowardsParameterSize) {
  for (const int ranks : {3, 4})
    run_ranks(ranks, {}, [ranks](Transport& transport) {
      const Layer layer{"w", 61, 65};
      GradientReducer reducer(transport, {.codec = "int8"});
      reducer.add(layer.name, {.count = layer.count(),
                               .rows = layer.rows,
                               .columns = layer.columns,
                               .collective = Collective::kReduceScatter,
                               .shard_count = shard_count(layer, ranks)});
      EXPECT_NE(reducer.explain().find("as bf16 (fewer than 4096 values)"), std::string::npos)
          << reducer.explain();
    });
}

TEST(ScatteringReducer, InvalidShapesAndCallsAreRejected) {
  run_ranks(2, {}, [](Transport& transport) {
    const GradientShape shape{.count = 101, .collective = Collective::kReduceScatter};
    const auto message = [](const auto& call) {
      try {
        call();
      } catch (const InvalidArgumentError& error) {
        return std::string(error.what());
      }
      return std::string("no error");
    };
    GradientReducer reducer(transport, {.codec = "none"});
    GradientShape narrow = shape;
    narrow.shard_count = 50;
    EXPECT_EQ(message([&] { reducer.add("n", narrow); }),
              "shards of 50 values on 2 ranks are too small for the 101 values of \"n\": give at "
              "least 51");
    reducer.add("w", shape);
    reducer.add("v", {.count = 102});
    Values gradient(102), shard(51);
    EXPECT_NE(message([&] { reducer.ready("w", gradient); }).find("51 values"), std::string::npos);
    EXPECT_NE(message([&] { reducer.ready("w", shard, shard); }).find("102 values"),
              std::string::npos);
    EXPECT_NE(message([&] { reducer.ready("v", gradient, shard); }).find("is all-reduced"),
              std::string::npos);
    EXPECT_NE(message([&] { reducer.ready("w"); }).find("without a gradient"), std::string::npos);
    GradientReducer sums(transport, {.rules = {{"*", "intsum"}}});
    EXPECT_NE(message([&] { sums.add("w", shape); }).find("supports only allreduce"),
              std::string::npos);
  });
}

TEST(ScatteringReducer, CollectiveMismatchFailsOnAllRanks) {
  expect_all_fail(2, [](Transport& transport) {
    GradientReducer reducer(transport, {.codec = "none"});
    const bool scatters = transport.rank() == 0;
    reducer.add("w",
                {.count = 100,
                 .collective = scatters ? Collective::kReduceScatter : Collective::kAllreduce});
    Values gradient(100), shard(50);
    scatters ? reducer.ready("w", gradient, shard) : reducer.ready("w", gradient);
    reducer.wait();
  });
}

}  // namespace
}  // namespace tersor::testing
