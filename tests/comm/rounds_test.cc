// Codecs with several rounds in collectives and the reducer. intsum's sums are exact, so its
// results depend on the gradients alone.
#include "tests/comm/ranks.h"
#include "tests/comm/training.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

const char* const kSpecs[] = {"intsum", "intsum:bits=16", "intsum:bits=32",
                              "intsum:bits=16,rounding=stochastic", "intsum:bits=32,scale=0.0005"};

std::vector<Values> summed(const std::vector<Values>& inputs, const CollectiveOptions& options) {
  return on_ranks(inputs, [&](Transport& transport, Values& gradient) {
    allreduce(transport, gradient, options);
  });
}

TEST(Rounds, AllRanksGetIdenticalBitsNearTheSum) {
  for (const std::string spec : kSpecs)
    for (const int ranks : {1, 2, 3, 5, 8})
      for (const std::size_t count : {1, 255, 513, 5000, 70001}) {
        SCOPED_TRACE(::testing::Message() << spec << " " << ranks << " " << count);
        const auto inputs = gradients(ranks, count);
        const auto outputs = summed(inputs, {.codec = spec});
        for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
        // n ranks share a scale of about 3 sigma in `levels` steps. The test skips a single value,
        // because its sum may be near 0.
        const double levels = spec == "intsum" ? 127.0 / ranks : 4000.0;
        if (count > 1)
          EXPECT_LT(squared_error(outputs.front(), exact_sum(inputs)), 3 / (levels * levels));
      }
}

TEST(Rounds, BitsAreIndependentOfChunksAndRankOrder) {
  auto inputs = gradients(4, 70001);
  const CollectiveOptions options{.codec = "intsum:bits=16", .reduction = Reduction::kMean};
  const Values wanted = summed(inputs, options).front();
  CollectiveOptions cut = options;
  cut.chunk_count = 4096;
  EXPECT_EQ(summed(inputs, cut).front(), wanted);
  std::rotate(inputs.begin(), inputs.begin() + 1, inputs.end());
  EXPECT_EQ(summed(inputs, options).front(), wanted);
  std::swap(inputs[0], inputs[2]);
  EXPECT_EQ(summed(inputs, options).front(), wanted);
}

TEST(Rounds, FixedScaleHalvesTheMessages) {
  const auto messages = [](const char* codec) {
    std::uint64_t sent = 0;
    run_ranks(4, {}, [&](Transport& transport) {
      Values gradient(300, 0.5f);
      allreduce(transport, gradient, {.codec = codec});
      EXPECT_NEAR(gradient[299], 2.0f, 0.02f);
      if (transport.rank() == 0) sent = transport.counters().sent_messages;
    });
    return sent;
  };
  EXPECT_EQ(messages("intsum"), 2 * messages("intsum:scale=0.02"));
}

// The sum of each host is quantized instead of each rank's gradient.
TEST(Rounds, RunBetweenHostsOfHierarchy) {
  const auto inputs = gradients(6, 70001);
  const std::vector<int> hosts{0, 0, 0, 1, 1, 2};
  CollectiveOptions options{.codec = "intsum:bits=16", .algorithm = Algorithm::kHierarchical};
  options.hosts = hosts;
  options.chunk_count = 8192;
  const auto outputs = summed(inputs, options);
  for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
  EXPECT_LT(squared_error(outputs.front(), exact_sum(inputs)), 1e-6);
}

TEST(Rounds, ResultsPlusResidualsEqualSumOfInputs) {
  constexpr std::size_t kValues = 20000;
  const auto inputs = gradients(3, kValues);
  std::vector<Values> residuals(3, Values(kValues, 0.25f));
  const auto before = exact_sum(residuals);
  const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
    Values& residual = residuals[static_cast<std::size_t>(transport.rank())];
    CollectiveState state{.residual = residual};
    CollectiveOptions options{.codec = "intsum+ef"};
    options.state = &state;
    options.chunk_count = 4096;
    allreduce(transport, gradient, options);
  });
  const auto wanted = exact_sum(inputs), after = exact_sum(residuals);
  for (std::size_t i = 0; i < kValues; ++i)
    ASSERT_NEAR(outputs.front()[i] + after[i], wanted[i] + before[i], 1e-5) << i;
}

TEST(Rounds, NaNFillsExactlyItsBlockOnAllRanks) {
  auto inputs = gradients(3, 2000);
  inputs[1][700] = std::numeric_limits<float>::quiet_NaN();
  for (const char* codec : {"intsum", "intsum:scale=0.1"})
    for (const Values& output : summed(inputs, {.codec = codec}))
      for (std::size_t i = 0; i < output.size(); ++i)
        ASSERT_EQ(std::isnan(output[i]), i / 256 == 700 / 256) << i;
}

TEST(Rounds, TheReducerLosesNothing) {
  expect_loses_nothing(4, {.codec = "intsum:bits=16+ef"});
  expect_loses_nothing(
      4,
      {.codec = "intsum:bits=16+ef", .algorithm = Algorithm::kHierarchical, .hosts = {0, 0, 1, 1}});
}

// With equal random numbers in all steps, errors of slowly changing gradients would add up.
TEST(Rounds, ReducerRoundsEachStepDifferently) {
  for (const char* codec : {"intsum:rounding=stochastic", "intsum:scale=0.05,rounding=stochastic"})
    run_ranks(2, {}, [&](Transport& transport) {
      Training run(transport, {.codec = codec});
      const Values first = run.step(0);
      EXPECT_NE(run.step(0), first) << codec;
    });
}

// If all gradients are equal, the error of a mean equals each rank's own error. Levels are shared,
// and a fixed scale's clipping is included.
TEST(Rounds, MeasuredErrorMatchesActualError) {
  for (const std::string spec :
       {"intsum", "intsum:bits=16", "intsum:scale=0.02", "intsum:scale=0.5"})
    for (const Reduction reduction : {Reduction::kMean, Reduction::kSum}) {
      SCOPED_TRACE(spec + (reduction == Reduction::kMean ? " mean" : " sum"));
      run_ranks(8, {}, [&](Transport& transport) {
        Values gradient = gaussian(5000, 1);
        const double adds = reduction == Reduction::kSum ? 8 : 1;
        const std::vector<double> wanted(gradient.begin(), gradient.end());
        GradientReducer reducer(
            transport, {.codec = spec, .reduction = reduction, .measure_error = MeasureError::kOn});
        reducer.add("w", gradient, 50, 100);
        reducer.ready("w");
        reducer.wait();
        for (float& value : gradient) value /= static_cast<float>(adds);
        const double found = std::sqrt(squared_error(gradient, wanted));
        EXPECT_NEAR(reducer.statistics().relative_error / found, 1.0, 1e-3) << found;
      });
    }
}

TEST(Rounds, UnsupportedCollectivesAreRejectedBeforeSending) {
  run_ranks(2, {}, [](Transport& transport) {
    Values whole(2000), shard(1000);
    const CollectiveOptions options{.codec = "intsum"};
    EXPECT_THROW(reduce_scatter(transport, whole, shard, options), InvalidArgumentError);
    EXPECT_THROW(allgather(transport, shard, whole, options), InvalidArgumentError);
    EXPECT_THROW(allreduce(transport, whole, {.codec = "intsum", .algorithm = Algorithm::kTwoShot}),
                 InvalidArgumentError);
    EXPECT_EQ(transport.counters().sent_messages, 0u);
    allreduce(transport, whole, options);
  });
}

TEST(Rounds, TooManyRanksForAccumulatorAreRejected) {
  run_ranks(130, {}, [](Transport& transport) {
    Values gradient(10);
    expect_error<InvalidArgumentError>([&] { allreduce(transport, gradient, {.codec = "intsum"}); },
                                       "bits=16");
  });
}

}  // namespace
}  // namespace tersor::testing
