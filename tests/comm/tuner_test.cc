// Codec "auto" over the in-process transport: measurements, equal decisions on all ranks, and
// refused options.
#include "tests/comm/ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

namespace tersor::testing {
namespace {

using namespace std::chrono_literals;
/// A link slow enough for bytes to dominate, even with sanitized codecs.
constexpr LinkFigures kSlow{.latency = 1e-4, .seconds_per_byte = 8e-6, .seconds_per_message = 1e-6};
constexpr LinkFigures kInfinite{};

AutoOptions given(const LinkFigures& link, std::vector<std::string> codecs = {"int8"}) {
  return {.codecs = std::move(codecs), .link = link};
}

/// The choice predicted on each rank.
std::vector<std::string> choices(int ranks, const AutoOptions& options, std::size_t count,
                                 Dtype dtype = Dtype::kF32) {
  std::vector<std::string> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    Tuner tuner(transport, options);
    const AutoChoice choice = tuner.predict(dtype, count);
    all[static_cast<std::size_t>(transport.rank())] =
        choice.codec + " " + std::string(algorithm_name(choice.algorithm)) + " " +
        std::to_string(choice.chunk_count);
  });
  return all;
}

TEST(Tuner, SlowLinkUsesFewestAllowedBytes) {
  const std::size_t count = 1 << 22;
  EXPECT_EQ(choices(4, given(kSlow), count)[0].substr(0, 5), "int8 ");
  EXPECT_EQ(choices(4, given(kSlow, {"int8", "int4"}), count)[0].substr(0, 5), "int4 ");
  EXPECT_EQ(choices(4, given(kSlow, {}), count)[0].substr(0, 5), "bf16 ");
  EXPECT_EQ(choices(2, given(kSlow, {"topk:density=0.01+ef"}), count)[0].substr(0, 5), "topk:");
}

// The tuner measures the codecs. On a busy machine, a single measurement may be wrong.
TEST(Tuner, InfinitelyFastLinkUsesNoCodec) {
  std::string choice;
  for (int attempt = 0; attempt < 10 && choice != "none "; ++attempt)
    choice = choices(4, given(kInfinite), 1 << 22)[0].substr(0, 5);
  EXPECT_EQ(choice, "none ");
  EXPECT_EQ(choices(2, given(kSlow, {}), 1 << 20, Dtype::kBf16)[0].substr(0, 5), "none ")
      << "a 16-bit gradient is no shorter as bf16";
}

TEST(Tuner, KeepsBoundedNumberOfSizes) {
  run_ranks(1, {}, [](Transport& transport) {
    Tuner tuner(transport, given(kSlow));
    std::size_t after_some = 0;
    for (std::size_t count = 1; count <= 1300; ++count) {
      tuner.predict(Dtype::kF32, count);
      tuner.choose(Dtype::kF32, count);
      tuner.choose(Dtype::kF32, 1);  // keeps this size in use
      if (count == 600) after_some = tuner.explain().size();
    }
    EXPECT_LT(tuner.explain().size(), 2 * after_some);
    EXPECT_TRUE(tuner.settled(Dtype::kF32, 1));
    EXPECT_FALSE(tuner.settled(Dtype::kF32, 2));
  });
}

TEST(Tuner, AllRanksMakeTheSameChoice) {
  for (const int ranks : {1, 2, 3, 4})
    for (const std::size_t count : {0, 1, 1000, 100'000, 4'000'000}) {
      AutoOptions measured{.codecs = {"int8", "int4"}};
      const std::vector<std::string> all = choices(ranks, measured, count);
      for (const std::string& one : all) EXPECT_EQ(one, all[0]) << ranks << " " << count;
    }
}

TEST(Tuner, AllreduceFollowsTunerWithIdenticalBits) {
  const auto inputs = gradients(3, 60'000);
  std::string explanation;
  const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& values) {
    Tuner tuner(transport);
    CollectiveWorkspace workspace;
    CollectiveStatistics statistics;
    const Values start = values;
    for (int call = 0; !tuner.settled(Dtype::kF32, values.size()); ++call) {
      ASSERT_LT(call, 1000);
      values = start;
      const AutoChoice choice = tuner.choose(Dtype::kF32, values.size());
      allreduce(
          transport, values,
          {.codec = "auto", .workspace = &workspace, .statistics = &statistics, .tuner = &tuner});
      EXPECT_EQ(statistics.algorithm, choice.algorithm);
    }
    if (transport.rank() == 0) explanation = tuner.explain();
  });
  EXPECT_LT(squared_error(outputs[0], exact_sum(inputs)), 1e-3);
  for (const Values& output : outputs) EXPECT_EQ(output, outputs[0]);
  for (const char* word :
       {"3 ranks", "latency", "60000 values of f32", "predicted", "settled after", "calls of",
        "the quickest", "bf16 native", "int8 two-shot"})
    EXPECT_NE(explanation.find(word), std::string::npos) << word << "\n" << explanation;
}

// More dimensions save messages, and `error_growth` limits the dimensions. Messages and bytes cost
// far more than the ranks' own work even on a busy machine, so int8 is fastest.
TEST(Tuner, ManyRanksUseThePredictedFastestGrid) {
  const auto inputs = gradients(40, 30'001);
  const std::pair<double, std::vector<int>> bounds[] = {{2, {5, 4, 2}}, {1.5, {8, 5}}, {1, {40}}};
  for (const auto& [error_growth, dims] : bounds) {
    AutoOptions options = given({.seconds_per_byte = 8e-5, .seconds_per_message = 0.3});
    options.error_growth = error_growth;
    const auto chosen = on_ranks(inputs, [&](Transport& transport, Values& values) {
      Tuner tuner(transport, options);
      EXPECT_EQ(tuner.choose(Dtype::kF32, values.size()).dims, dims);
      EXPECT_EQ(tuner.predict(Dtype::kF32, values.size()).dims, dims);
      allreduce(transport, values, {.codec = "auto", .tuner = &tuner});
    });
    const auto wanted = on_ranks(inputs, [&](Transport& transport, Values& values) {
      allreduce(transport, values,
                {.codec = "int8", .algorithm = Algorithm::kTwoShot, .dims = dims});
    });
    EXPECT_EQ(chosen, wanted) << error_growth;
  }
}

TEST(Tuner, PredictionUsesGivenGrid) {
  run_ranks(6, {}, [&](Transport& transport) {
    Tuner tuner(transport, given(kSlow));
    const std::vector<int> dims = {3, 2};
    const auto candidates = tuner.predict_each(Dtype::kF32, 1 << 20, Collective::kAllreduce, dims);
    EXPECT_EQ(candidates.back().choice.codec, "int8");
    EXPECT_EQ(candidates.back().choice.dims, dims);
    EXPECT_NE(tuner.explain().find("int8 two-shot on 3 x 2, chunks"), std::string::npos);
  });
}

TEST(Tuner, InvalidOptionsAreRejected) {
  run_ranks(2, {}, [](Transport& transport) {
    EXPECT_THROW(Tuner(transport, {.codecs = {"int9"}}), InvalidArgumentError);
    EXPECT_THROW(Tuner(transport, {.codecs = {"auto"}}), InvalidArgumentError);
    EXPECT_THROW(Tuner(transport, {.threads = 0}), InvalidArgumentError);
    EXPECT_THROW(Tuner(transport, {.error_growth = 0.5}), InvalidArgumentError);
    for (const double nonsense : {-1.0, HUGE_VAL, std::nan("")}) {
      EXPECT_THROW(Tuner(transport, given({.latency = nonsense})), InvalidArgumentError);
      EXPECT_THROW(Tuner(transport, given({.seconds_per_byte = nonsense})), InvalidArgumentError);
    }
    Values values(100), output(200);
    EXPECT_THROW(allreduce(transport, values, {.codec = "auto"}), InvalidArgumentError);
    EXPECT_THROW(reduce_scatter(transport, output, values, {.codec = "auto"}),
                 InvalidArgumentError);
    EXPECT_THROW(allgather(transport, values, output, {.codec = "auto"}), InvalidArgumentError);
    Tuner feedback(transport, given(kSlow, {"int8+ef"}));
    EXPECT_THROW(allreduce(transport, values, {.codec = "auto", .tuner = &feedback}),
                 InvalidArgumentError);
    EXPECT_THROW(allreduce(transport, values,
                           {.codec = "auto", .algorithm = Algorithm::kOneShot, .tuner = &feedback}),
                 InvalidArgumentError);
    EXPECT_THROW(
        allreduce(transport, values, {.codec = "auto", .error_growth = 1, .tuner = &feedback}),
        InvalidArgumentError);
    EXPECT_THROW(GradientReducer(transport, {.codec = "auto", .algorithm = Algorithm::kOneShot}),
                 InvalidArgumentError);
  });
}

TEST(Tuner, AbsentRankRaisesTimelyError) {
  const auto start = Clock::now();
  EXPECT_THROW(run_ranks(3, {},
                         [](Transport& transport) {
                           if (transport.rank() == 1) {
                             const auto channel = transport.channel();
                             while (Clock::now() < Clock::time_point::max()) channel->progress();
                           }
                           Tuner tuner(transport, {.timeout = 200ms});
                         }),
               TransportError);
  EXPECT_LT(Clock::now() - start, 5s);
}

TEST(TunedReducer, ChoosesForLargeParametersAndKeepsRanksEqual) {
  const auto inputs = gradients(4, 300'000);
  std::vector<std::string> explanations(4);
  const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& values) {
    GradientReducer reducer(
        transport, {.codec = "auto", .auto_codecs = {"int8", "int4+ef"}, .auto_link = kSlow});
    const ValueSpan all(values);
    reducer.add("weight", all.subspan(0, 250'000), 500, 500);
    reducer.add("bias", all.subspan(250'000, 500));
    reducer.add("last", all.subspan(250'500, 49'500), 495, 100);
    for (int step = 0; step < 3; ++step) {
      for (const char* name : {"last", "bias", "weight"}) reducer.ready(name);
      reducer.wait();
    }
    explanations[static_cast<std::size_t>(transport.rank())] = reducer.explain();
    const auto statistics = reducer.parameter_statistics();
    EXPECT_EQ(statistics[0].codec, "int4+ef") << reducer.explain();
    EXPECT_EQ(statistics[1].codec, "bf16") << "a small 1-D parameter goes by the default rule";
    EXPECT_EQ(statistics[2].codec, "int4+ef");
  });
  for (const Values& output : outputs) EXPECT_EQ(output, outputs[0]);
  for (const char* word : {"weight", "auto", "int4+ef two-shot", "predicted"})
    EXPECT_NE(explanations[0].find(word), std::string::npos) << word << "\n" << explanations[0];
}

// The accuracy of the choice is tested in tests/clock.
TEST(TunedReducer, MeasuresUnspecifiedLink) {
  std::vector<std::string> codecs(2), explanations(2);
  run_ranks(2, parse_link("100Mbit,100us"), [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    Values values = gaussian(1 << 18, 3);
    GradientReducer reducer(transport, {.rules = {{"*", "auto"}}});
    reducer.add("weight", values, 512, 512);
    reducer.ready("weight");
    reducer.wait();
    codecs[rank] = reducer.parameter_statistics()[0].codec;
    explanations[rank] = reducer.explain();
  });
  EXPECT_EQ(codecs[0], codecs[1]);
  EXPECT_NE(explanations[0].find("latency"), std::string::npos) << explanations[0];
}

// Ranks agree when the first gradient of a step is ready. A late rank receives the error of the
// other rank.
TEST(TunedReducer, RankTooLateToAgreeFailsOnAllRanks) {
  std::atomic<int> errors = 0;
  EXPECT_THROW(run_ranks(2, {},
                         [&](Transport& transport) {
                           Values values(10000, 1.0f);
                           Tuner tuner(transport);  // measures with its own, long timeout
                           GradientReducer reducer(
                               transport, {.codec = "auto", .tuner = &tuner, .timeout = 200ms});
                           reducer.add("weight", values, 100, 100);
                           try {
                             for (int step = 0; step < 100; ++step) {
                               if (step == 5 && transport.rank() == 1)
                                 std::this_thread::sleep_for(600ms);
                               reducer.ready("weight");
                               reducer.wait();
                             }
                           } catch (const TransportError&) {
                             ++errors;
                             throw;
                           }
                         }),
               TransportError);
  EXPECT_EQ(errors, 2);
}

}  // namespace
}  // namespace tersor::testing
