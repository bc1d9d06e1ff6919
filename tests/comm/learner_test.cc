// A learner's trials, choices and reversals for given step times.
#include "comm/tuning/learner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tersor {
namespace {

using Times = std::map<std::string, double>;  // seconds per step by codec

Learner::Group group(const std::vector<std::string>& codecs, std::size_t chosen = 0) {
  Learner::Group all{.name = "all", .candidates = {}, .chosen = chosen};
  for (const std::string& codec : codecs) all.candidates.push_back({.name = codec});
  return all;
}

/// Steps of one group, reported to one rank or to several agreeing ranks.
class LearnedSteps {
 public:
  explicit LearnedSteps(std::vector<Learner::Group> groups, Learner::Terms terms = {})
      : codecs_(names_of(groups)), learner_(std::move(groups), std::move(terms)) {}

  Learner& learner() { return learner_; }
  std::string codec(std::size_t group = 0) const {
    return codecs_[group][learner_.candidate(group)];
  }

  void step(double seconds) {
    if (learner_.add(seconds)) learner_.agree(learner_.seconds());
  }
  void steps(int count, const std::function<double()>& seconds) {
    for (int i = 0; i < count; ++i) step(seconds());
  }
  /// Steps until the learner settles, at most `most`. Returns the tried codecs in order.
  std::vector<std::string> settle(const Times& times, int most = 200) {
    std::vector<std::string> tried;
    for (int i = 0; i < most && !learner_.settled(); ++i) {
      if (tried.empty() || tried.back() != codec()) tried.push_back(codec());
      step(times.at(codec()));
    }
    EXPECT_TRUE(learner_.settled()) << learner_.explain();
    return tried;
  }

 private:
  static std::vector<std::vector<std::string>> names_of(const std::vector<Learner::Group>& groups) {
    std::vector<std::vector<std::string>> names;
    for (const Learner::Group& one : groups) {
      names.emplace_back();
      for (const Learner::Candidate& candidate : one.candidates)
        names.back().push_back(candidate.name);
    }
    return names;
  }

  std::vector<std::vector<std::string>> codecs_;
  Learner learner_;
};

TEST(Learner, ChoosesFastestRegardlessOfPrediction) {
  for (std::size_t predicted = 0; predicted < 3; ++predicted)
    for (const std::string quickest : {"none", "bf16", "int8"}) {
      LearnedSteps run({group({"none", "bf16", "int8"}, predicted)});
      Times times{{"none", 1.0}, {"bf16", 1.0}, {"int8", 1.0}};
      times[quickest] = 0.6;
      const auto tried = run.settle(times);
      EXPECT_EQ(run.codec(), quickest) << run.learner().explain();
      EXPECT_EQ(tried.size(), 3u) << "what is far slower is tried once";
    }
}

TEST(Learner, RejectsCodecOnePercentSlowerThanBf16) {
  for (const double slower : {1.011, 1.02, 1.1, 3.0}) {
    LearnedSteps run({group({"none", "bf16", "int8"}, 2)});
    run.settle({{"none", slower * 1.5}, {"bf16", 1.0}, {"int8", slower}});
    EXPECT_EQ(run.codec(), "bf16") << slower << "\n" << run.learner().explain();
  }
}

TEST(Learner, TrialHasOneWarmupAndThreeTimedSteps) {
  LearnedSteps run({group({"none", "int8"})});
  for (const std::string codec : {"none", "int8"})
    for (int step = 0; step < 4; ++step) {
      EXPECT_EQ(run.codec(), codec) << step;
      EXPECT_EQ(run.learner().is_measuring(), step > 0) << step;
      run.step(codec == "none" ? 1.0 : 2.0);
    }
  EXPECT_TRUE(run.learner().settled());
}

TEST(Learner, PrefersLeastLossyAmongEquallyFastCodecs) {
  LearnedSteps run({group({"none", "bf16", "int8"}, 2)});
  run.settle({{"none", 1.009}, {"bf16", 1.005}, {"int8", 1.0}});
  EXPECT_EQ(run.codec(), "none");
  EXPECT_NE(run.learner().explain().find("loses less"), std::string::npos)
      << run.learner().explain();
}

// Every third step is disturbed. Medians ignore the disturbance, and close results are measured
// again.
TEST(Learner, IgnoresOutlierSteps) {
  LearnedSteps run({group({"none", "bf16", "int8"})});
  const Times times{{"none", 1.04}, {"bf16", 1.02}, {"int8", 1.0}};
  int count = 0;
  run.steps(200, [&] { return times.at(run.codec()) * (++count % 3 == 0 ? 5 : 1); });
  EXPECT_TRUE(run.learner().settled());
  EXPECT_EQ(run.codec(), "int8") << run.learner().explain();
}

TEST(Learner, IgnoresFirstStepOfEachCandidate) {
  LearnedSteps run({group({"none", "int8"}, 1)});
  std::string last;
  run.steps(100, [&] {
    const bool first = last != run.codec();
    last = run.codec();
    return first ? 100.0 : run.codec() == "int8" ? 1.0 : 2.0;
  });
  EXPECT_EQ(run.codec(), "int8");
  EXPECT_NE(run.learner().explain().find("steps of 1.00 s, the quickest"), std::string::npos)
      << run.learner().explain();
}

TEST(Learner, SkipsCandidatesPredictedFarSlower) {
  Learner::Group all = group({"none", "bf16", "int8"}, 2);
  all.candidates[0].predicted = 6.1;
  all.candidates[1].predicted = 5.9;
  all.candidates[2].predicted = 0.5;
  LearnedSteps run({all});
  const auto tried = run.settle({{"none", 0.1}, {"bf16", 6.0}, {"int8", 1.0}});
  EXPECT_EQ(tried, (std::vector<std::string>{"int8", "bf16"}));
  EXPECT_EQ(run.codec(), "int8");
  EXPECT_NE(run.learner().explain().find("not tried"), std::string::npos);
}

// Calls have predicted times. The learner tries codecs with a prediction below twice the fastest
// measured time, and no slower codecs.
TEST(Learner, CallsSkipCandidatesPredictedOverTwiceAsSlow) {
  Learner::Group all = group({"none", "bf16", "int8"}, 2);
  all.candidates[0].predicted = 4.1;
  all.candidates[1].predicted = 3.9;
  all.candidates[2].predicted = 1.0;
  LearnedSteps run({all},
                   {.timed = "calls", .predicted = "calls", .max_ratio = 2, .first_pause = 64});
  const auto tried = run.settle({{"none", 1.0}, {"bf16", 3.0}, {"int8", 2.0}});
  EXPECT_EQ(tried, (std::vector<std::string>{"int8", "bf16"}));
  EXPECT_NE(run.learner().explain().find("calls of 3.90 s predicted; calls of 3.00 s, 50 % slower"),
            std::string::npos)
      << run.learner().explain();
  int calls = 0;
  for (; run.learner().settled(); ++calls) run.step(calls < 100 ? 2.0 : 1.0);
  EXPECT_EQ(calls, 4 + 2 * 64 + 4) << "a look, a pause, another look";
}

TEST(Learner, MeasurementsOverrideWrongPredictions) {
  Learner::Group all = group({"none", "int8"}, 1);
  all.candidates[0].predicted = 40;
  all.candidates[1].predicted = 10;
  LearnedSteps run({all});
  run.settle({{"none", 0.9}, {"int8", 1.0}});
  EXPECT_EQ(run.codec(), "none");
}

TEST(Learner, RetriesWhenStepTimesDriftByAFifth) {
  for (const double factor : {1.25, 0.79}) {
    LearnedSteps run({group({"none", "int8"})});
    run.settle({{"none", 1.0}, {"int8", 2.0}});
    ASSERT_EQ(run.codec(), "none");
    run.steps(100, [] { return 1.0; });
    EXPECT_TRUE(run.learner().settled());
    const Times later{{"none", factor}, {"int8", factor / 2}};
    run.steps(400, [&] { return later.at(run.codec()); });
    EXPECT_EQ(run.codec(), "int8") << factor << "\n" << run.learner().explain();
  }
}

TEST(Learner, DoesNotRetryOnSmallerDrift) {
  LearnedSteps run({group({"none", "int8"})});
  run.settle({{"none", 1.0}, {"int8", 2.0}});
  run.steps(3000, [&, count = 0]() mutable {
    EXPECT_TRUE(run.learner().settled());
    return ++count < 100 ? 1.0 : count % 2 == 0 ? 1.19 : 0.85;
  });
  EXPECT_EQ(run.codec(), "none");
}

// After `steady` steps of 1 s, the number of steps of 1.5 s until the learner tries again.
int steps_until_it_tries(int steady) {
  LearnedSteps run({group({"none", "int8"})});
  run.settle({{"none", 1.0}, {"int8", 2.0}});
  run.steps(steady, [] { return 1.0; });
  int steps = 0;
  for (; run.learner().settled(); ++steps) run.step(1.5);
  return steps;
}

TEST(Learner, RetriesLessOftenAfterSteadySteps) {
  EXPECT_LE(steps_until_it_tries(20), 80);
  EXPECT_GT(steps_until_it_tries(1500), 500);
  EXPECT_LE(steps_until_it_tries(10000), 1200);
}

TEST(Learner, ChoosesFastestCodecPerGroup) {
  LearnedSteps run({group({"none", "bf16"}), group({"none"}), group({"bf16", "int8"})});
  run.steps(200, [&] {
    return (run.codec(0) == "bf16" ? 1.0 : 2.0) + (run.codec(2) == "int8" ? 1.0 : 1.5);
  });
  EXPECT_TRUE(run.learner().settled());
  EXPECT_EQ(run.codec(0), "bf16");
  EXPECT_EQ(run.codec(1), "none");
  EXPECT_EQ(run.codec(2), "int8");
}

TEST(Learner, AgreesOnTheSlowestRanksTime) {
  LearnedSteps run({group({"none", "int8"})});
  const Times here{{"none", 1.0}, {"int8", 0.5}}, there{{"none", 1.0}, {"int8", 1.5}};
  for (int step = 0; step < 100; ++step)
    if (run.learner().add(here.at(run.codec())))
      run.learner().agree(std::max(run.learner().seconds(), there.at(run.codec())));
  EXPECT_EQ(run.codec(), "none");
}

TEST(Learner, SettlesAtOnceWithoutAChoice) {
  LearnedSteps run({group({"none"}), group({"bf16"})});
  EXPECT_FALSE(run.learner().has_choice());
  EXPECT_TRUE(run.learner().settled());
}

TEST(Learner, StartsWithChoiceOfLoadedState) {
  LearnedSteps run({group({"none", "bf16", "int8"})});
  run.settle({{"none", 1.0}, {"bf16", 2.0}, {"int8", 2.0}});
  run.learner().begin_with({2});
  EXPECT_FALSE(run.learner().settled());
  EXPECT_EQ(run.codec(), "int8");
  EXPECT_NE(run.learner().explain().find("not tried yet"), std::string::npos);
  run.settle({{"none", 1.0}, {"bf16", 2.0}, {"int8", 2.0}});
  EXPECT_EQ(run.codec(), "none") << "whatever was loaded";
}

TEST(Learner, ReportsReasonForRetry) {
  LearnedSteps run({group({"none", "int8"})});
  run.settle({{"none", 1.0}, {"int8", 2.0}});
  for (int step = 0; run.learner().settled(); ++step) run.step(step < 50 ? 1.0 : 1.5);
  EXPECT_NE(run.learner().explain().find("steps of 1.00 s took 1.50 s"), std::string::npos)
      << run.learner().explain();
}

}  // namespace
}  // namespace tersor
