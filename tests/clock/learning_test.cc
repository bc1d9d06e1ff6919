// Learning from step times on an emulated link, in virtual time (only the link and the backward
// pass take time). A reducer corrects a wrong prediction, loses nothing in between, and explains
// its choices.
#include <gtest/gtest.h>
#include <tersor/tersor.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/clock/clock.h"
#include "tests/comm/ranks.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;
using testing::gaussian;
using testing::Values;

constexpr std::size_t kCount = 20000;
constexpr LinkFigures kInfinite{};
constexpr LinkFigures kSlow{.seconds_per_byte = 1e-6};

ReducerOptions automatic(const LinkFigures& link, std::vector<std::string> codecs = {"int8"}) {
  return {.codec = "auto",
          .auto_codecs = std::move(codecs),
          .auto_link = link,
          .progress = ProgressBy::kCaller};
}

/// A rank's training of two parameters, with the sums of results and inputs over steps.
class Training {
 public:
  Training(Transport& transport, const ReducerOptions& options, Clock::duration pass = {})
      : pass_(pass),
        rank_(transport.rank()),
        ranks_(transport.ranks()),
        values_(kCount),
        results_(kCount),
        gradients_(kCount),
        reducer(transport, options) {
    const ValueSpan all(values_);
    reducer.add("a", all.subspan(0, kCount / 2), 100, 100);
    reducer.add("b", all.subspan(kCount / 2, kCount / 2), 100, 100);
  }

  void step(int number) {
    gradient(number, rank_);
    for (int rank = 0; rank < ranks_; ++rank) add(gradient(number, rank), gradients_, 1.0 / ranks_);
    gradient(number, rank_);
    run();
  }

  void empty_step() {
    std::ranges::fill(values_, 0.0f);
    run();
  }

  void steps(int count) {
    for (int i = 0; i < count; ++i) step(i);
  }

  std::string codec() const { return reducer.parameter_statistics()[0].codec; }
  const Values& values() const { return values_; }

  /// |sum of results − sum of mean gradients|² / |sum of mean gradients|², after draining
  /// residuals.
  double lost() {
    for (int i = 0; i < 60; ++i) empty_step();
    double error = 0, energy = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      error += (results_[i] - gradients_[i]) * (results_[i] - gradients_[i]);
      energy += gradients_[i] * gradients_[i];
    }
    return error / energy;
  }
  /// Includes the inputs and results of `before`.
  void take_over(const Training& before) {
    results_ = before.results_;
    gradients_ = before.gradients_;
  }
  void forget_last() {
    add(values_, results_, -1.0);
    for (int rank = 0; rank < ranks_; ++rank) add(gradient(last_, rank), gradients_, -1.0 / ranks_);
  }

 private:
  const Values& gradient(int number, int rank) {
    last_ = number;
    const Values drawn = gaussian(kCount, static_cast<std::uint64_t>(number * 100 + rank));
    std::ranges::copy(drawn, values_.begin());
    return values_;
  }
  static void add(const Values& values, std::vector<double>& sums, double factor) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += factor * double{values[i]};
  }
  void run() {
    reducer.ready("b");
    if (pass_ > Clock::duration{}) pass(pass_);
    reducer.ready("a");
    reducer.wait();
    add(values_, results_, 1.0);
  }

  Clock::duration pass_;
  int rank_, ranks_, last_ = 0;
  Values values_;
  std::vector<double> results_, gradients_;

 public:
  GradientReducer reducer;
};

/// Trains until each rank has settled. Returns each rank's codec and explanation.
struct Learned {
  std::vector<std::string> codecs, explanations;
};

Learned learn(int ranks, const char* link, const ReducerOptions& options,
              Clock::duration pass = {}) {
  const auto size = static_cast<std::size_t>(ranks);
  Learned learned{std::vector<std::string>(size), std::vector<std::string>(size)};
  run_on_clock(ranks, parse_link(link), [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    Training run(transport, options, pass);
    for (int step = 0; step < 100 && (step < 2 || !run.reducer.settled()); ++step) run.step(step);
    EXPECT_TRUE(run.reducer.settled()) << run.reducer.explain();
    learned.codecs[rank] = run.codec();
    learned.explanations[rank] = run.reducer.explain();
  });
  for (const std::string& codec : learned.codecs) EXPECT_EQ(codec, learned.codecs[0]);
  return learned;
}

TEST(Learning, CorrectsWrongPrediction) {
  for (const int ranks : {2, 3}) {
    const Learned slow = learn(ranks, "100Mbit,100us", automatic(kInfinite));
    EXPECT_EQ(slow.codecs[0], "int8") << slow.explanations[0];
    for (const char* words : {"auto, the codec for all, f32: int8, settled after",
                              "none: ", "% slower", "the quickest"})
      EXPECT_NE(slow.explanations[0].find(words), std::string::npos) << slow.explanations[0];
    EXPECT_EQ(learn(ranks, "none", automatic(kSlow)).codecs[0], "none");
  }
}

// The backward pass hides the transfers except for the last message.
TEST(Learning, ChoosesNoCompressionIfBackwardHidesTransfers) {
  const Learned hidden = learn(2, "1Gbit,10us", automatic(kSlow), 100ms);
  EXPECT_EQ(hidden.codecs[0], "none") << hidden.explanations[0];
}

TEST(Learning, FollowsPredictionIfLearningIsOff) {
  ReducerOptions options = automatic(kInfinite);
  options.auto_learning = AutoLearning::kOff;
  const Learned predicted = learn(2, "100Mbit,100us", options);
  EXPECT_EQ(predicted.codecs[0], "none");
  EXPECT_EQ(predicted.explanations[0].find("settled"), std::string::npos);
}

// One-shot with 4 bits, and two-shot with f32, whose owners then have residuals. The parts fit all
// codecs, although some codecs cut at different offsets.
TEST(Learning, ResidualsSurviveChangesOfCodec) {
  const LinkFigures link{.latency = 1e-3, .seconds_per_byte = 1 / 30e6};
  for (const Transactional transactions : {Transactional::kOff, Transactional::kOn}) {
    ReducerOptions options =
        automatic(link, {"int4", "topk:density=0.2+ef", "blocktopk:density=0.25,values=bf16+ef"});
    options.transactional = transactions;
    run_on_clock(4, parse_link("240Mbit,1ms"), [&](Transport& transport) {
      Training run(transport, options);
      for (int step = 0; step < 60; ++step) {
        run.step(step);
        if (transactions == Transactional::kOff || step % 7 != 3) continue;
        run.forget_last();
        run.reducer.discard_step();
      }
      EXPECT_LT(run.lost(), 1e-6);
      const std::string text = run.reducer.explain();
      for (const char* words : {"none+ef: ", "bf16+ef: ", "int4+ef: ", "topk:density=0.2+ef: ",
                                "blocktopk:density=0.25,values=bf16+ef: "})
        EXPECT_NE(text.find(words), std::string::npos) << text;
    });
  }
}

TEST(Learning, LearnsForShardsInReadyOrder) {
  ReducerOptions options = automatic(kInfinite);
  options.order = SendingOrder::kReadyOrder;
  run_on_clock(3, parse_link("100Mbit,100us"), [&](Transport& transport) {
    GradientReducer reducer(transport, options);
    const GradientShape shape{
        .count = 30000, .rows = 100, .columns = 300, .collective = Collective::kReduceScatter};
    for (const char* name : {"a", "b"}) reducer.add(name, shape);
    Values gradient(30000), shard(10000);
    for (int step = 0; step < 100; ++step) {
      for (const char* name : {"b", "a"}) {
        std::ranges::fill(gradient, static_cast<float>(transport.rank()));
        reducer.ready(name, gradient, shard);
        reducer.wait();
        for (const float value : shard) ASSERT_NEAR(value, 1.0f, 0.02f);
      }
    }
    EXPECT_TRUE(reducer.settled());
    EXPECT_EQ(reducer.parameter_statistics()[0].codec, "int8") << reducer.explain();
  });
}

// At any step, even during trials, the saved residuals fit the initial codec of the next run. The
// next run starts with the saved choice and continues the trials.
TEST(Learning, CheckpointRestoresCodecChoice) {
  for (const int saved_after : {0, 1, 9, 17, 80}) {
    SCOPED_TRACE(saved_after);
    run_on_clock(3, parse_link("100Mbit,100us"), [&](Transport& transport) {
      Training first(transport, automatic(kInfinite, {"int4+ef"}));
      first.steps(saved_after);
      const auto state = first.reducer.save_state();
      Training second(transport, automatic(kInfinite, {"int4+ef"}));
      second.reducer.load_state(state);
      EXPECT_EQ(second.codec(), saved_after > 15 ? "int4+ef" : "none+ef");
      EXPECT_FALSE(second.reducer.settled());
      first.empty_step();
      second.empty_step();
      if (saved_after == 80) EXPECT_EQ(first.values(), second.values());
      const auto portable = first.reducer.save_portable_state();
      Training third(transport, automatic(kSlow, {"int4+ef"}));
      third.reducer.load_state(portable);
      third.empty_step();
    });
  }
}

// The model of one run chooses two-shot with residuals of owners, and the model of the other run
// does not.
TEST(Learning, ResidualsSurviveChangesOfAlgorithm) {
  const LinkFigures flat{.seconds_per_byte = 1e-6}, latent{.latency = 1};
  for (const bool back : {false, true}) {
    run_on_clock(3, parse_link("100Mbit,100us"), [&](Transport& transport) {
      ReducerOptions from = automatic(back ? latent : flat, {"int4+ef"});
      ReducerOptions to = automatic(back ? flat : latent, {"int4+ef"});
      from.auto_learning = to.auto_learning = AutoLearning::kOff;
      Training first(transport, from), second(transport, to);
      first.steps(5);
      second.reducer.load_state(first.reducer.save_state());
      second.take_over(first);
      EXPECT_LT(second.lost(), 1e-6) << second.reducer.explain();
    });
  }
}

// The other rank has no ready parameters in some steps and still ends these steps.
TEST(Learning, SettlesWithoutReadyParametersOnOneRank) {
  ReducerOptions options = automatic(kInfinite);
  options.missing = MissingGradient::kInactive;
  run_on_clock(2, parse_link("100Mbit,100us"), [&](Transport& transport) {
    Values values(kCount, 1.0f);
    GradientReducer reducer(transport, options);
    reducer.add("a", values, 100, 200);
    for (int step = 0; step < 60; ++step) {
      if (transport.rank() == 0 || step % 3 != 2) reducer.ready("a");
      reducer.wait();
    }
    EXPECT_TRUE(reducer.settled());
  });
}

}  // namespace
}  // namespace tersor::test
