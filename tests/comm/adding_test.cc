// Parameters added between steps: same results as parameters present from the start without a
// gradient.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tersor::testing {
namespace {

using ::testing::HasSubstr;
constexpr std::size_t kValues = 8000;
constexpr int kSteps = 6, kAddedAt = 3;

/// A rank's layers of a matrix each. Some layers are added later.
class Growing {
 public:
  Growing(Transport& transport, const ReducerOptions& options)
      : rank_(transport.rank()), reducer_(transport, options) {}

  GradientReducer& reducer() { return reducer_; }

  void add(const std::string& name) {
    names_.push_back(name);
    gradients_.push_back(std::make_unique<Values>(kValues));
    reducer_.add(name, *gradients_.back(), 80, 100);
  }

  /// The concatenated results of all layers. Layers from `active` on have no gradient.
  std::vector<Values> step(int index, std::size_t active) {
    for (std::size_t i = active; i-- > 0;) {
      *gradients_[i] = gaussian(kValues, static_cast<std::uint64_t>(index) * 1000 +
                                             static_cast<std::uint64_t>(rank_) * 10 + i);
      reducer_.ready(names_[i], *gradients_[i]);
    }
    reducer_.wait();
    std::vector<Values> back;
    for (std::size_t i = 0; i < active; ++i) back.push_back(*gradients_[i]);
    return back;
  }
  std::vector<Values> step(int index) { return step(index, names_.size()); }

 private:
  int rank_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<Values>> gradients_;
  GradientReducer reducer_;
};

struct AddingCase {
  const char* codec;
  Algorithm algorithm;
  SendingOrder order;
  ProgressBy progress;
};

class Adding : public ::testing::TestWithParam<AddingCase> {
 protected:
  ReducerOptions options() const {
    return {.rules = {{"*", GetParam().codec}},
            .algorithm = GetParam().algorithm,
            .bucket_bytes = 40'000,  // a message per layer
            .order = GetParam().order,
            .missing = MissingGradient::kInactive,
            .progress = GetParam().progress};
  }
};

TEST_P(Adding, MatchesInactiveParameterBitwise) {
  for (const int ranks : {1, 2, 3})
    run_ranks(ranks, {}, [&](Transport& transport) {
      Growing grows(transport, options()), whole(transport, options());
      for (const char* name : {"first", "second"}) grows.add(name);
      for (const char* name : {"first", "second", "third", "fourth"}) whole.add(name);
      for (int step = 0; step < kSteps; ++step) {
        if (step == kAddedAt)
          for (const char* name : {"third", "fourth"}) grows.add(name);
        EXPECT_EQ(grows.step(step), whole.step(step, step < kAddedAt ? 2 : 4)) << step;
      }
      EXPECT_EQ(grows.reducer().parameter_statistics()[2].steps,
                static_cast<std::uint64_t>(kSteps - kAddedAt));
    });
}

TEST_P(Adding, StateRestoresAddedParameter) {
  run_ranks(2, {}, [&](Transport& transport) {
    Growing grows(transport, options()), next(transport, options());
    grows.add("first");
    grows.step(0);
    grows.add("second");
    const auto before = grows.reducer().save_state();  // with the new layer, before its first step
    grows.step(1);
    for (const char* name : {"first", "second"}) next.add(name);
    next.reducer().load_state(before);
    next.step(1);
    EXPECT_EQ(next.step(2), grows.step(2));
    next.reducer().load_state(grows.reducer().save_state());
    EXPECT_EQ(next.step(3), grows.step(3));
  });
}

std::string name_of(const ::testing::TestParamInfo<AddingCase>& info) {
  return "w" + std::to_string(info.index);
}
INSTANTIATE_TEST_SUITE_P(Cases, Adding,
                         ::testing::Values(AddingCase{"int8+ef", Algorithm::kTwoShot,
                                                      SendingOrder::kLearned, ProgressBy::kThread},
                                           AddingCase{"int8+ef", Algorithm::kOneShot,
                                                      SendingOrder::kLearned, ProgressBy::kCaller},
                                           AddingCase{"topk:density=0.05+ef", Algorithm::kAuto,
                                                      SendingOrder::kReadyOrder,
                                                      ProgressBy::kThread},
                                           AddingCase{"lowrank:rank=2+ef", Algorithm::kAuto,
                                                      SendingOrder::kLearned, ProgressBy::kCaller}),
                         name_of);

TEST(AddingBetweenSteps, IsRejectedOnceAGradientIsReady) {
  run_ranks(2, {}, [](Transport& transport) {
    Growing grows(transport, {.codec = "int8+ef"});
    grows.add("first");
    grows.add("second");
    grows.step(0);
    Values gradient(kValues, 1.0f), other(kValues, 1.0f), more(kValues);
    grows.reducer().ready("first", gradient);
    expect_error<InvalidArgumentError>([&] { grows.reducer().add("third", more); },
                                       "add(\"third\") between two steps");
    grows.reducer().ready("second", other);
    grows.reducer().wait();
    grows.add("third");
    EXPECT_EQ(grows.step(2).size(), 3u);
  });
}

// Messages of the first parameter may be under way.
TEST(Reducer, RejectsCallsBetweenStepsAfterFirstReadyGradient) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(1000), other(1000);
    GradientReducer reducer(transport, {.codec = "int8+ef", .transactional = Transactional::kOn});
    reducer.add("w", gradient);
    reducer.add("v", other);
    const auto begin_step = [&](float value) {
      gradient.assign(1000, value);
      other.assign(1000, value);
      reducer.ready("w");
    };
    const auto end_step = [&] {
      reducer.ready("v");
      reducer.wait();
    };
    begin_step(1.0f);
    end_step();
    const std::vector<std::byte> state = reducer.save_state();
    const std::vector<std::string> names = {"v"};
    begin_step(2.0f);
    const std::vector<std::pair<std::string, std::function<void()>>> calls = {
        {"relearn_order()", [&] { reducer.relearn_order(); }},
        {"load_state()", [&] { reducer.load_state(state); }},
        {"save_state()", [&] { (void)reducer.save_state(); }},
        {"save_state()", [&] { (void)reducer.save_portable_state(); }},
        {"discard_step()", [&] { reducer.discard_step(); }},
        {"discard_step()", [&] { reducer.discard_step(names); }},
        {"accept_steps()", [&] { reducer.accept_steps(); }},
        {"residual_norms()", [&] { (void)reducer.residual_norms(); }},
        {"scale_residuals()", [&] { reducer.scale_residuals(2.0f, names); }}};
    for (const auto& [name, call] : calls)
      expect_error<InvalidArgumentError>(call, "call " + name + " between two steps");
    end_step();
    EXPECT_NEAR(other.back(), 2.0f, 0.02f);
    reducer.discard_step();
    EXPECT_EQ(reducer.save_state(), state);
  });
}

TEST(AddingBetweenSteps, OnOneRankOnlyFailsOnAllRanks) {
  run_ranks(2, {}, [](Transport& transport) {
    Growing grows(transport, {.codec = "int8+ef", .timeout = std::chrono::seconds(20)});
    grows.add("first");
    grows.step(0);
    if (transport.rank() == 1) grows.add("second");
    expect_error<TransportError>([&] { grows.step(1); }, "with other arguments");
  });
}

TEST(AddingBetweenSteps, AddedParameterUsesCurrentSchedulePhase) {
  run_ranks(2, {}, [](Transport& transport) {
    Growing grows(transport, {.rules = {{"*", "bf16"}, {"*", "int8", 2}}});
    grows.add("first");
    for (int step = 0; step < 4; ++step) grows.step(step);
    grows.add("second");
    grows.step(4);
    EXPECT_EQ(grows.reducer().parameter_statistics()[1].codec, "int8");
  });
}

TEST(AddingBetweenSteps, AutoChoosesSameCodecForAddedParameter) {
  run_ranks(2, parse_link("100Mbit,100us"), [](Transport& transport) {
    Growing grows(transport, {.rules = {{"*", "auto"}}});
    grows.add("first");
    for (int step = 0; step < 3; ++step) grows.step(step);
    grows.add("second");
    for (int step = 3; step < 6; ++step) grows.step(step);
    const auto all = grows.reducer().parameter_statistics();
    EXPECT_EQ(all[0].codec, all[1].codec) << grows.reducer().explain();
    EXPECT_TRUE(all[1].codec_may_change);
  });
}

// Statistics exclude parameters added after the last step.
TEST(AddingBetweenSteps, StatisticsMayBeResetBeforeTheNextStep) {
  run_ranks(2, {}, [](Transport& transport) {
    Growing grows(transport, {.codec = "int8+ef"});
    grows.add("first");
    grows.reducer().reset_statistics();
    EXPECT_TRUE(grows.reducer().residual_norms().empty());
    grows.step(0);
    grows.add("second");
    grows.reducer().reset_statistics();
    EXPECT_EQ(grows.reducer().statistics().steps, 0u);
    grows.step(1);
    const auto all = grows.reducer().parameter_statistics();
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0].steps, 1u);
    EXPECT_EQ(all[1].steps, 1u);
    EXPECT_GT(grows.reducer().residual_norms()[1], 0.0);
  });
}

}  // namespace
}  // namespace tersor::testing
