// The GradientReducer with parameters without a gradient on some ranks.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

// The largest difference, on two ranks and over three steps, between the gradients given and the
// received sums.
float largest_lack(Contribution contribution, const std::string& codec) {
  constexpr std::size_t kCount = 8192;
  const Values values = gaussian(kCount, 1);
  std::vector<float> lacks(2);
  run_ranks(2, {}, [&](Transport& transport) {
    Values gradient(kCount), owed(kCount);
    GradientReducer reducer(transport, {.codec = codec, .reduction = Reduction::kSum});
    reducer.add("w", gradient, 64, 128);
    for (int step = 0; step < 3; ++step) {
      const bool left_out = step > 0 && transport.rank() == 1;
      for (std::size_t i = 0; i < kCount; ++i) {
        gradient[i] = left_out ? 0.0f : values[i];
        owed[i] += (step == 0 ? 2.0f : 1.0f) * values[i];
      }
      reducer.ready("w", gradient, left_out ? contribution : Contribution::kGradient);
      reducer.wait();
      for (std::size_t i = 0; i < kCount; ++i) owed[i] -= gradient[i];
    }
    for (const float value : owed)
      lacks[static_cast<std::size_t>(transport.rank())] =
          std::max(lacks[static_cast<std::size_t>(transport.rank())], std::abs(value));
  });
  EXPECT_EQ(lacks[0], lacks[1]);
  return lacks[0];
}

TEST(Contributions, SkippedZeroGradientEqualsNoContribution) {
  for (const char* codec : {"int8+ef", "topk:density=0.05+ef"}) {
    const float retained = largest_lack(Contribution::kNone, codec);
    EXPECT_EQ(largest_lack(Contribution::kGradientUnlessZero, codec), retained) << codec;
    EXPECT_NE(largest_lack(Contribution::kGradient, codec), retained)
        << codec;  // sent its residual
  }
}

TEST(Contributions, NonContributingRankAddsZeroAndReceivesSum) {
  run_ranks(3, {}, [](Transport& transport) {
    Values gradient(5000, 1.0f);
    GradientReducer reducer(transport, {.codec = "none", .reduction = Reduction::kSum});
    reducer.add("w", gradient, 50, 100);
    reducer.ready("w", gradient,
                  transport.rank() == 1 ? Contribution::kNone : Contribution::kGradient);
    reducer.wait();
    EXPECT_EQ(gradient, Values(5000, 2.0f));
  });
}

TEST(Contributions, GradientWithOneNonzeroValueContributes) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(5001);
    GradientReducer reducer(transport, {.codec = "none", .reduction = Reduction::kSum});
    reducer.add("w", gradient);
    gradient.back() = 3.0f;
    reducer.ready("w", gradient, Contribution::kGradientUnlessZero);
    reducer.wait();
    EXPECT_EQ(gradient.back(), 6.0f);
  });
}

TEST(Contributions, ParameterMayBeAddedBeforeFirstGradient) {
  run_ranks(2, {}, [](Transport& transport) {
    GradientReducer reducer(transport, {.codec = "none", .reduction = Reduction::kSum});
    reducer.add("w", {.count = 5000, .rows = 50, .columns = 100});
    EXPECT_THROW(reducer.ready("w"), InvalidArgumentError);
    for (int step = 0; step < 2; ++step) {
      Values gradient(5000, 1.0f);
      reducer.ready("w", gradient);
      reducer.wait();
      EXPECT_EQ(gradient, Values(5000, 2.0f));
    }
  });
}

TEST(Contributions, ParameterWithoutAnyGradientFailsOnAllRanks) {
  std::atomic<int> errors = 0;
  run_ranks(2, {}, [&](Transport& transport) {
    Values other(100, 1.0f);
    try {  // may fail before this rank's reducer exists
      GradientReducer reducer(transport, {.codec = "none", .missing = MissingGradient::kInactive});
      reducer.add("v", other);
      reducer.add("w", {.count = 5000, .rows = 50, .columns = 100});
      reducer.ready("v");
      reducer.wait();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("\"w\""), std::string::npos) << error.what();
      ++errors;
    }
  });
  EXPECT_EQ(errors, 2);
}

// Results of steps on three ranks, with two parameters in one message. If `interrupted`, extra
// steps without a gradient of the first parameter run in between.
std::vector<Values> results(const ReducerOptions& options, bool interrupted) {
  constexpr std::size_t kCount = 64 * 128;
  std::vector<Values> results(3);
  run_ranks(3, {}, [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    GradientReducer reducer(transport, options);
    for (const char* name : {"w", "v"})
      reducer.add(name, {.count = kCount, .rows = 64, .columns = 128});
    const auto step = [&](Contribution contribution, Values gradient) {
      Values other = gaussian(kCount, 7);
      reducer.ready("w", gradient, contribution);
      reducer.ready("v", other);
      reducer.wait();
      return gradient;
    };
    for (std::size_t i = 0; i < 4; ++i) {
      const Values result = step(Contribution::kGradient, gaussian(kCount, 3 * i + rank));
      results[rank].insert(results[rank].end(), result.begin(), result.end());
      if (interrupted)
        EXPECT_EQ(step(Contribution::kGloballyUnused, Values(kCount, 1)), Values(kCount));
      if (interrupted && options.transactional == Transactional::kOn && i % 2 == 1)
        reducer.discard_step();
    }
  });
  return results;
}

TEST(Contributions, GloballyUnusedStepsLeaveResultsUnchanged) {
  for (const char* codec : {"int8+ef", "bf16+ef", "topk:density=0.05+ef", "lowrank:rank=2+ef"})
    for (const Transactional transactions : {Transactional::kOff, Transactional::kOn})
      for (const Hosts& hosts : {Hosts{}, Hosts{0, 0, 1}}) {
        ReducerOptions options{.codec = codec, .transactional = transactions};
        if (!hosts.empty()) options.algorithm = Algorithm::kHierarchical;
        options.hosts = hosts;
        EXPECT_EQ(results(options, true), results(options, false)) << codec << " " << hosts.size();
      }
}

// The first phase has more codec memory than the second.
TEST(Contributions, InactiveParameterIsUnchangedInLaterPhase) {
  const ReducerOptions options{
      .rules = {{"*", "lowrank:rank=4+ef"}, {"*", "lowrank:rank=2+ef", 1}}};
  EXPECT_EQ(results(options, true), results(options, false));
}

// The caller owns the first step's gradient again, so no later step may write there.
TEST(Contributions, GradientPassedToReadyIsUnchangedInLaterSteps) {
  std::atomic<int> errors = 0;
  run_ranks(2, {}, [&](Transport& transport) {
    Values first(5000, 1.0f);
    try {  // may fail during the first step
      GradientReducer reducer(
          transport,
          {.codec = "none", .reduction = Reduction::kSum, .missing = MissingGradient::kInactive});
      reducer.add("w", {.count = 5000, .rows = 50, .columns = 100});
      reducer.ready("w", first);
      reducer.wait();
      EXPECT_EQ(first, Values(5000, 2.0f));
      EXPECT_THROW(reducer.ready("w"), Error);
      reducer.wait();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("\"w\""), std::string::npos) << error.what();
      ++errors;
    }
    EXPECT_NE(first, Values(5000, 0.0f));
  });
  EXPECT_EQ(errors, 2);
}

}  // namespace
}  // namespace tersor::testing
