// Sample-weighted steps (ReducerOptions::weighted): the result is the mean over all ranks' samples
// for every codec and algorithm. Also refused calls.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <cmath>
#include <latch>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace tersor::testing {
namespace {

constexpr std::size_t kWeighed = 20'000;
const std::vector<double> kSamples = {12, 0, 3, 1};  // their sum is a power of two
constexpr double kInfiniteSamples = std::numeric_limits<double>::infinity();

ReducerOptions weighed(const std::string& codec = "none") {
  return {.codec = codec, .weighted = Weighted::kOn};
}

Values weighed_gradient(int rank, int step = 0) {
  return gaussian(kWeighed, static_cast<std::uint64_t>(step * 100 + rank));
}

/// The mean over samples of the ranks' gradients in a step.
std::vector<double> wanted_mean(const std::vector<double>& samples, int step = 0) {
  std::vector<double> mean(kWeighed, 0.0);
  double sum = 0;
  for (const double one : samples) sum += one;
  for (std::size_t rank = 0; rank < samples.size(); ++rank) {
    const Values own = weighed_gradient(static_cast<int>(rank), step);
    for (std::size_t i = 0; i < kWeighed; ++i) mean[i] += samples[rank] / sum * own[i];
  }
  return mean;
}

/// A rank's reducer of one matrix.
struct WeighedRun {
  WeighedRun(Transport& transport, const ReducerOptions& options)
      : rank(transport.rank()), gradient(kWeighed), reducer(transport, options) {
    reducer.add("w", gradient, 100, 200);
  }

  const Values& step(double samples, int index = 0) {
    gradient = weighed_gradient(rank, index);
    if (samples == 0) gradient.assign(kWeighed, std::nanf(""));
    reducer.weigh(samples);
    reducer.ready("w", gradient);
    reducer.wait();
    return gradient;
  }

  int rank;
  Values gradient;
  GradientReducer reducer;
};

double samples_of(const Transport& transport) {
  return kSamples[static_cast<std::size_t>(transport.rank())];
}

TEST(Weights, MeanIsWeightedBySamples) {
  for (const ProgressBy progress : {ProgressBy::kThread, ProgressBy::kCaller})
    for (const SendingOrder order : {SendingOrder::kLearned, SendingOrder::kReadyOrder})
      for (const char* codec : {"none", "bf16", "int8+ef"}) {
        const double limit = std::string(codec) == "none" ? 1e-13 : 1e-3;
        ReducerOptions options = weighed(codec);
        options.progress = progress;
        options.order = order;
        run_ranks(4, {}, [&](Transport& transport) {
          WeighedRun run(transport, options);
          for (int step = 0; step < 3; ++step)
            EXPECT_LT(
                squared_error(run.step(samples_of(transport), step), wanted_mean(kSamples, step)),
                limit)
                << codec;
        });
      }
}

// Gradients are integers, and all factors are exact.
TEST(Weights, ExactFactorsGiveExactMean) {
  run_ranks(4, {}, [](Transport& transport) {
    WeighedRun run(transport, weighed());
    run.reducer.weigh(samples_of(transport));
    run.gradient.assign(kWeighed, static_cast<float>(transport.rank() + 1));
    run.reducer.ready("w", run.gradient);
    run.reducer.wait();
    EXPECT_EQ(run.gradient, Values(kWeighed, (12 * 1 + 3 * 3 + 1 * 4) / 16.0f));
  });
}

// Equal weights give the bits of a step without weights. Weights may change between steps.
TEST(Weights, EqualWeightsMatchUnweightedSteps) {
  for (const char* codec : {"none", "int8+ef", "topk:density=0.05+ef", "hadamard:bits=1+ef"}) {
    std::vector<Values> plain(3), equal(3);
    run_ranks(3, {}, [&](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      WeighedRun weighs(transport, weighed(codec));
      WeighedRun run(transport, {.codec = codec});
      for (int step = 0; step < 3; ++step) {
        equal[rank] = weighs.step(7.5 + step, step);
        run.gradient = weighed_gradient(run.rank, step);
        run.reducer.ready("w", run.gradient);
        run.reducer.wait();
        plain[rank] = run.gradient;
      }
    });
    EXPECT_EQ(equal, plain) << codec;
  }
}

// Gradients are the same in each step. The withheld residuals arrive eventually, in units of the
// mean, although weights change in between.
TEST(Weights, ResidualsPersistWhenWeightsChange) {
  constexpr int kSteps = 150;
  for (const char* codec : {"int8+ef", "blocktopk:density=0.1+ef", "hadamard:bits=2+ef"})
    run_ranks(4, {}, [&](Transport& transport) {
      WeighedRun run(transport, weighed(codec));
      Values sums(kWeighed);
      std::vector<double> wanted(kWeighed);
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<double> samples =
            step % 2 == 0 ? kSamples : std::vector<double>{1, 2, 0, 5};
        const Values& found = run.step(samples[static_cast<std::size_t>(run.rank)]);
        for (std::size_t i = 0; i < kWeighed; ++i) sums[i] += found[i] / kSteps;
      }
      const std::vector<double> even = wanted_mean(kSamples), odd = wanted_mean({1, 2, 0, 5});
      for (std::size_t i = 0; i < kWeighed; ++i) wanted[i] = (even[i] + odd[i]) / 2;
      EXPECT_LT(squared_error(sums, wanted), 0.02) << codec;
    });
}

TEST(Weights, ApplyToShards) {
  run_ranks(4, {}, [](Transport& transport) {
    GradientReducer reducer(transport, weighed());
    reducer.add("w", {.count = kWeighed, .collective = Collective::kReduceScatter});
    Values gradient = weighed_gradient(transport.rank()), shard(kWeighed / 4);
    reducer.weigh(samples_of(transport));
    reducer.ready("w", gradient, shard);
    reducer.wait();
    const std::vector<double> all = wanted_mean(kSamples);
    const auto first = all.begin() + transport.rank() * (kWeighed / 4);
    EXPECT_LT(squared_error(shard, {first, first + kWeighed / 4}), 1e-13);
  });
}

TEST(Weights, ApplyWithHierarchicalAlgorithm) {
  run_ranks(4, {.ranks_per_host = 2}, [](Transport& transport) {
    ReducerOptions options = weighed("int8+ef");
    options.algorithm = Algorithm::kHierarchical;
    WeighedRun run(transport, options);
    EXPECT_LT(squared_error(run.step(samples_of(transport)), wanted_mean(kSamples)), 1e-3);
  });
}

TEST(Weights, ApplyToBf16Gradients) {
  run_ranks(2, {}, [](Transport& transport) {
    GradientReducer reducer(transport, weighed());
    std::vector<std::uint16_t> ones(100, 0x3f80);  // 1 in bf16
    reducer.add("w", ValueSpan(reinterpret_cast<std::byte*>(ones.data()), 100, Dtype::kBf16));
    reducer.weigh(transport.rank() == 0 ? 3 : 0);
    reducer.ready("w");
    reducer.wait();
    EXPECT_EQ(ones, std::vector<std::uint16_t>(100, 0x3f80));
  });
}

// The sending thread still executes the previous step.
TEST(Weights, NextStepMayBeWeighedBeforePreviousCompletes) {
  run_ranks(2, {.latency = std::chrono::milliseconds(5)}, [](Transport& transport) {
    WeighedRun run(transport, weighed());
    for (int step = 0; step < 4; ++step) {
      if (step == 0) run.reducer.weigh(transport.rank());
      run.gradient = weighed_gradient(run.rank, step);
      run.reducer.ready("w", run.gradient);
      run.reducer.flush();
      run.reducer.weigh(transport.rank());
      run.reducer.wait();
      const Values only = weighed_gradient(1, step);
      EXPECT_EQ(run.gradient, only);
    }
  });
}

// The exchange of weights begins in weigh() and uses the parameters.
TEST(Weights, AddAndLoadStateAreRejectedAfterWeigh) {
  run_ranks(2, {}, [](Transport& transport) {
    WeighedRun run(transport, weighed());
    const auto state = [&] {
      run.step(1);
      return run.reducer.save_state();
    }();
    std::vector<Values> added(20, Values(1000));
    for (std::size_t i = 0; i < added.size(); ++i) {
      run.reducer.add(std::to_string(i), added[i]);
      run.reducer.weigh(1 + 2 * transport.rank());
      Values more(10);
      expect_error<InvalidArgumentError>([&] { run.reducer.add("more", more); },
                                         "add(\"more\") after weigh()");
      expect_error<InvalidArgumentError>([&] { run.reducer.load_state(state); },
                                         "load_state() after weigh()");
      run.gradient.assign(kWeighed, static_cast<float>(4 * transport.rank()));
      run.reducer.ready("w");
      for (std::size_t j = 0; j <= i; ++j) {
        added[j].assign(1000, static_cast<float>(8 * transport.rank()));
        run.reducer.ready(std::to_string(j));
      }
      run.reducer.wait();
      EXPECT_EQ(run.gradient, Values(kWeighed, 3.0f));
      EXPECT_EQ(added[i], Values(1000, 6.0f));
    }
  });
}

TEST(Weights, WeightOfInactiveRankCounts) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerOptions options = weighed();
    options.missing = MissingGradient::kInactive;
    WeighedRun run(transport, options);
    for (int step = 0; step < 3; ++step) {
      run.gradient.assign(kWeighed, 1.0f);
      run.reducer.weigh(transport.rank() == 0 ? 1 : 3);
      if (transport.rank() == 0) run.reducer.ready("w", run.gradient);
      run.reducer.wait();
      EXPECT_EQ(run.gradient, Values(kWeighed, 0.25f));
    }
  });
}

TEST(Weights, InvalidWeighCallsAreRejectedWithoutEffect) {
  run_ranks(2, {}, [](Transport& transport) {
    const auto text = [](const auto& call) { return error_of<InvalidArgumentError>(call); };
    WeighedRun plain(transport, {.codec = "none"}), run(transport, weighed());
    EXPECT_TRUE(says(text([&] { plain.reducer.weigh(1); }), "the option weighted"));
    EXPECT_TRUE(says(text([&] { run.reducer.ready("w"); }), "call weigh() in each step before"));
    EXPECT_TRUE(says(text([&] { run.reducer.wait(); }), "call weigh() in each step before"));
    for (const double bad : {-1.0, kInfiniteSamples, std::nan("")})
      EXPECT_TRUE(says(text([&] { run.reducer.weigh(bad); }),
                       "give a finite number of samples, 0 or more"));
    run.reducer.weigh(1 + 2 * transport.rank());
    EXPECT_TRUE(says(text([&] { run.reducer.weigh(5); }), "once in a step"));
    run.gradient.assign(kWeighed, static_cast<float>(4 * transport.rank()));
    run.reducer.ready("w", run.gradient);
    EXPECT_TRUE(says(text([&] { run.reducer.weigh(5); }), "once in a step"));
    run.reducer.wait();
    EXPECT_EQ(run.gradient, Values(kWeighed, 3.0f));
    EXPECT_TRUE(says(text([&] { run.reducer.ready("w"); }), "call weigh() in each step before"));
    ReducerOptions sum = weighed();
    sum.reduction = Reduction::kSum;
    EXPECT_TRUE(says(text([&] { GradientReducer(transport, sum); }), "needs a mean"));
  });
}

TEST(Weights, ZeroOrInfiniteTotalIsRejectedAndMayBeRetried) {
  for (const int ranks : {1, 3})
    for (const double bad : {0.0, std::numeric_limits<double>::max()})
      run_ranks(ranks, {}, [&](Transport& transport) {
        if (ranks == 1 && bad != 0) return;
        WeighedRun run(transport, weighed());
        run.reducer.weigh(bad);
        EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { run.reducer.ready("w"); }),
                         "call weigh() again"));
        EXPECT_LT(squared_error(run.step(2), wanted_mean(std::vector<double>(
                                                 static_cast<std::size_t>(ranks), 1.0))),
                  1e-13);
      });
}

// Ranks with and without weights detect the mismatch at once, not after the timeout.
TEST(Weights, WeightedOptionMismatchFailsOnAllRanks) {
  std::vector<std::string> texts(2);
  run_ranks(2, {}, [&](Transport& transport) {
    const bool weighs = transport.rank() == 0;
    try {
      WeighedRun run(transport, weighs ? weighed() : ReducerOptions{.codec = "none"});
      if (weighs) run.reducer.weigh(1);
      run.reducer.ready("w", run.gradient);
      run.reducer.wait();
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(transport.rank())] = error.what();
    }
  });
  for (const std::string& text : texts) EXPECT_TRUE(says(text, "weights"));
}

// Rank 2 leaves before sending a weight. Rank 1 has already sent a weight.
TEST(Weights, RankLossWhileWeighingIsRecoverable) {
  for (const ProgressBy progress : {ProgressBy::kThread, ProgressBy::kCaller}) {
    auto transports = make_inprocess_transports(4);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        const auto transport = std::move(transports[static_cast<std::size_t>(rank)]);
        ReducerOptions options = weighed("int8+ef");
        options.elastic = Elastic::kOn;
        options.progress = progress;
        WeighedRun run(*transport, options);
        run.step(1 + rank, 0);
        if (rank == 2) return;
        EXPECT_THROW(run.step(1 + rank, 1), RanksLostError);
        run.reducer.resume();
        EXPECT_THROW(run.reducer.ready("w"), InvalidArgumentError);  // the step has no weight
        EXPECT_LT(squared_error(run.step(1 + rank, 1), wanted_mean({1, 2, 0, 4}, 1)), 0.02);
      });
  }
}

}  // namespace
}  // namespace tersor::testing
