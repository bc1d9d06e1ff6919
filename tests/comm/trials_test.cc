// Which way is tried, taken, kept and left: without a clock.
#include "comm/tuning/trials.h"

#include <gtest/gtest.h>

#include <map>

namespace tersor {
namespace {

using Truth = std::map<std::string, double>;  // how long each way really takes

Alternative way(const std::string& codec, double predicted) {
  return {{codec, Algorithm::kTwoShot, kDefaultChunkCount}, predicted, 0};
}

/// Makes calls that take what `truth` says, until all is settled.
void settle(Trials& trials, const Truth& truth) {
  for (int calls = 0; !trials.settled(); ++calls) {
    ASSERT_LT(calls, 1000);
    if (trials.add(truth.at(trials.current().choice.codec))) trials.agree(trials.median());
  }
}

void call(Trials& trials, const Truth& truth, std::size_t calls) {
  for (std::size_t i = 0; i < calls; ++i)
    if (trials.add(truth.at(trials.current().choice.codec))) trials.agree(trials.median());
}

TEST(Trials, WhatIsClearlyQuickestNeedsNoTrial) {
  const Trials trials({way("none", 4e-2), way("int8", 1e-2), way("bf16", 2e-2)});
  EXPECT_TRUE(trials.settled());
  EXPECT_EQ(trials.current().choice.codec, "int8");
  EXPECT_NE(trials.reason(1).find("predicted 100 % slower"), std::string::npos) << trials.reason(1);
}

TEST(Trials, MeasuredTimesOverruleAWrongPrediction) {
  Trials trials({way("none", 1.0e-3), way("bf16", 1.1e-3), way("int8", 9e-3)});
  EXPECT_FALSE(trials.settled());
  EXPECT_EQ(trials.current().choice.codec, "none");
  settle(trials, {{"none", 2e-3}, {"bf16", 1e-3}});
  EXPECT_EQ(trials.current().choice.codec, "bf16");
  EXPECT_EQ(trials.alternatives()[2].measured, 0) << "int8 was not worth a trial";
}

TEST(Trials, WhatTheModelOverlookedIsTriedToo) {
  Trials trials({way("int8", 1.0e-3), way("bf16", 1.2e-3), way("none", 1.6e-3), way("f16", 9e-3)});
  settle(trials, {{"int8", 1.9e-3}, {"bf16", 2.5e-3}, {"none", 1.5e-3}});
  EXPECT_EQ(trials.current().choice.codec, "none");
  EXPECT_EQ(trials.alternatives()[3].measured, 0) << "f16 promised nothing";
}

TEST(Trials, FivePercentChangeNobodysMind) {
  Trials close({way("none", 1.0e-3), way("bf16", 1.1e-3)});
  settle(close, {{"none", 1e-3}, {"bf16", 0.96e-3}});
  EXPECT_EQ(close.current().choice.codec, "none");
  EXPECT_NE(close.reason(1).find("no clear gain"), std::string::npos) << close.reason(1);
  Trials clear({way("none", 1.0e-3), way("bf16", 1.1e-3)});
  settle(clear, {{"none", 1e-3}, {"bf16", 0.94e-3}});
  EXPECT_EQ(clear.current().choice.codec, "bf16");
}

TEST(Trials, ALinkThatChangesIsNoticed) {
  Trials trials({way("none", 1e-3), way("int8", 2e-3)});
  EXPECT_TRUE(trials.settled());
  const Truth slow = {{"none", 8e-3}, {"int8", 3e-3}};
  call(trials, slow, Trials::kFirstWindow + 1);
  EXPECT_FALSE(trials.settled()) << "none now takes longer than int8 was predicted to";
  settle(trials, slow);
  EXPECT_EQ(trials.current().choice.codec, "int8");
}

TEST(Trials, FruitlessTrialsBecomeRarer) {
  Trials trials({way("none", 1e-3), way("int8", 2e-3)});
  const Truth misleading = {{"none", 3e-3}, {"int8", 8e-3}};  // the model is wrong by 3 or 4
  std::size_t trying = 0;
  for (std::size_t i = 0; i < 4 * Trials::kLongestWindow; ++i) {
    trying += trials.settled() ? 0 : 1;
    call(trials, misleading, 1);
  }
  EXPECT_EQ(trials.current().choice.codec, "none");
  EXPECT_GT(trying, 0u);
  EXPECT_LT(trying, Trials::kLongestWindow / 20);
}

TEST(Trials, TheFirstCallOfEachWayIsNotCounted) {
  Trials trials({way("none", 1e-3), way("bf16", 1.1e-3)});
  EXPECT_FALSE(trials.add(1.0)) << "it prepares buffers";
  while (!trials.add(1e-3)) {
  }
  EXPECT_EQ(trials.median(), 1e-3);
}

}  // namespace
}  // namespace tersor
