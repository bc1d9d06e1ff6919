// The step of a reducer in isolation: order of requests, and completion.
#include "comm/reducer/step.h"

#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>
#include <thread>

namespace tersor {
namespace {

using Messages = ReducerStep::Messages;

class Steps : public ::testing::Test {
 protected:
  Steps() { step_.set_parameters(4, SendingOrder::kLearned); }

  std::vector<std::uint32_t> taken() {
    std::vector<std::uint32_t> all;
    while (const auto message = step_.take_requested()) all.push_back(*message);
    return all;
  }

  /// Completes a first step. Afterwards parameters 3, 2 and parameters 1, 0 share a message.
  void learn() {
    for (const std::uint32_t parameter : {3u, 2u, 1u, 0u}) step_.ready(parameter);
    step_.close();
    step_.take_order_request();
    step_.set_order({3, 2, 1, 0}, {{3, 2}, {1, 0}});
    taken();
    complete();
  }

  void complete() {
    step_.set_done(0);
    step_.set_done(1);
    ASSERT_TRUE(step_.all_done());
    step_.complete();
  }

  ReducerStep step_;
};

TEST_F(Steps, FirstStepRequestsNothingUntilOrderIsLearned) {
  for (const std::uint32_t parameter : {2u, 0u, 3u}) EXPECT_FALSE(step_.ready(parameter));
  EXPECT_FALSE(step_.has_work());
  EXPECT_FALSE(step_.ready(1));
  step_.close();
  EXPECT_TRUE(step_.has_work());
  EXPECT_TRUE(step_.take_order_request());
  EXPECT_FALSE(step_.take_order_request()) << "told once";
  EXPECT_EQ(step_.sequence(), (ReducerStep::Order{2, 0, 3, 1}));
  EXPECT_FALSE(step_.all_done());
  EXPECT_TRUE(step_.set_order({2, 0, 3, 1}, {{2, 0, 3}, {1}}));
  EXPECT_EQ(taken(), (std::vector<std::uint32_t>{0, 1}));
}

TEST_F(Steps, MessagesAreRequestedInOrderOnceReady) {
  learn();
  EXPECT_FALSE(step_.ready(0));
  EXPECT_FALSE(step_.ready(1)) << "the second message is ready, the first is not";
  EXPECT_FALSE(step_.is_requested(1));
  EXPECT_FALSE(step_.ready(2));
  EXPECT_TRUE(step_.ready(3));
  for (const std::uint32_t parameter : {0u, 1u, 2u, 3u}) EXPECT_TRUE(step_.is_requested(parameter));
  EXPECT_EQ(taken(), (std::vector<std::uint32_t>{0, 1}));
  EXPECT_FALSE(step_.has_work());
}

TEST_F(Steps, MessagesInReadyOrderWaitForTheAgreement) {
  step_.set_parameters(1, SendingOrder::kReadyOrder);
  const std::vector<std::uint32_t> message{step_.add_message({0})};
  step_.request_agreement();
  EXPECT_TRUE(step_.request({0}, message));
  EXPECT_EQ(taken(), (std::vector<std::uint32_t>{})) << "ranks must first compare loaded states";
  step_.agree();
  EXPECT_EQ(taken(), message);
}

TEST_F(Steps, CompleteOnceClosedAndAllResultsArrived) {
  learn();
  for (const std::uint32_t parameter : {3u, 2u, 1u, 0u}) step_.ready(parameter);
  step_.set_done(0);
  EXPECT_TRUE(step_.is_done(3, 1));
  EXPECT_FALSE(step_.is_done(1, 1));
  step_.set_done(1);
  EXPECT_FALSE(step_.all_done()) << "it is open";
  step_.close();
  EXPECT_FALSE(step_.take_order_request()) << "the order is known";
  EXPECT_TRUE(step_.all_done());
  EXPECT_EQ(step_.number(), 1u);
  step_.complete();
  EXPECT_EQ(step_.number(), 2u);
  EXPECT_FALSE(step_.closed());
  EXPECT_FALSE(step_.is_ready(0));
  EXPECT_TRUE(step_.is_done(0, 1));
  EXPECT_FALSE(step_.is_done(0, 2));
  EXPECT_TRUE(step_.sequence().empty());
}

TEST_F(Steps, EndOnceForFlushFollowedByWait) {
  EXPECT_TRUE(step_.can_close());
  step_.close();
  EXPECT_FALSE(step_.can_close());
  step_.complete();
  EXPECT_FALSE(step_.can_close()) << "nobody waited since";
  step_.set_awaited();
  EXPECT_TRUE(step_.can_close());
  step_.close();
  step_.complete();
  step_.ready(1);
  EXPECT_TRUE(step_.can_close()) << "another one began";
}

TEST_F(Steps, RelearnOrderAfterForgettingIt) {
  learn();
  step_.reset_order();
  EXPECT_FALSE(step_.order_known());
  for (const std::uint32_t parameter : {0u, 1u, 2u, 3u}) EXPECT_FALSE(step_.ready(parameter));
  EXPECT_FALSE(step_.is_requested(0));
  step_.close();
  EXPECT_FALSE(step_.all_done());
  EXPECT_TRUE(step_.take_order_request());
}

TEST_F(Steps, LearnedOrderRequestsMessagesAlreadyReady) {
  step_.ready(1);
  step_.ready(0);
  EXPECT_TRUE(step_.set_order({0, 1, 2, 3}, {{0, 1}, {2, 3}}));
  EXPECT_EQ(taken(), (std::vector<std::uint32_t>{0}));
}

TEST_F(Steps, SingleRankStepNeedsNoOrder) {
  for (std::uint32_t parameter = 0; parameter < 4; ++parameter) step_.ready(parameter);
  step_.close();
  step_.complete();  // of a single rank
  EXPECT_FALSE(step_.has_work());
  EXPECT_TRUE(step_.is_done(3, 0));
}

TEST_F(Steps, ReadyOrderRequestsReadyMessagesImmediately) {
  step_.set_parameters(4, SendingOrder::kReadyOrder);
  EXPECT_TRUE(step_.order_known());
  const std::uint32_t both = step_.add_message({3, 2}), one = step_.add_message({1});
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(step_.request({3, 2}, std::vector{both}));
    EXPECT_TRUE(step_.is_requested(2));
    EXPECT_FALSE(step_.is_requested(1));
    EXPECT_EQ(taken(), std::vector{both});
    step_.set_done(both);
    EXPECT_FALSE(step_.all_done()) << "it is open";
    EXPECT_TRUE(step_.request({1}, std::vector{one}));
    step_.close();
    EXPECT_FALSE(step_.take_order_request());
    EXPECT_FALSE(step_.all_done());
    step_.set_done(one);
    EXPECT_TRUE(step_.all_done()) << "parameter 0 takes no part";
    EXPECT_FALSE(step_.is_ready(0));
    step_.complete();
    taken();
  }
  step_.reset_order();
  EXPECT_TRUE(step_.order_known()) << "there is nothing to learn again";
  step_.close();
  EXPECT_TRUE(step_.all_done()) << "a step of nothing";
}

TEST_F(Steps, KeepTheFirstError) {
  EXPECT_NO_THROW(step_.rethrow());
  step_.fail(std::make_exception_ptr(std::runtime_error("first")));
  step_.fail(std::make_exception_ptr(std::runtime_error("second")));
  try {
    step_.rethrow();
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "first");
  }
}

/// Waits until `is_done` returns true for a step of two parameters, changed on another thread.
void expect_woken(const std::function<void(ReducerStep&)>& change,
                  const std::function<bool(ReducerStep&)>& is_done) {
  SharedStep shared;
  LockedStep step = shared.lock();
  step->set_parameters(2, SendingOrder::kLearned);
  step->set_order({0, 1}, {{0}, {1}});
  std::thread other([&] { change(*shared.lock()); });
  while (!is_done(*step)) step.wait();
  step.unlock();
  other.join();
}

// Callers need no explicit notification.
TEST(SharedStep, UnlockAfterChangeWakesWaiters) {
  expect_woken([](ReducerStep& step) { step.fail(std::make_exception_ptr(1)); },
               [](ReducerStep& step) { return step.failed(); });
  expect_woken([](ReducerStep& step) { step.set_done(1); },
               [](ReducerStep& step) { return step.is_done(1, 0); });
  expect_woken([](ReducerStep& step) { step.set_parameter_done(0); },
               [](ReducerStep& step) { return step.is_done(0, 0); });
  expect_woken([](ReducerStep& step) { step.complete(); },
               [](ReducerStep& step) { return step.number() == 1; });
}

}  // namespace
}  // namespace tersor
