// A parameter server without a transport: updates of the weights, and refused calls.
#include "tests/comm/served.h"

#include <tersor/server.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace tersor::testing {
namespace {

ParameterShard shard_of(const ServerOptions& options, Update update = sgd_update(1.0f)) {
  ServedWeights weights = no_weights();
  const auto views = spans<ConstValueSpan>(weights);
  return ParameterShard(views, std::move(update), options);
}

/// The frame of a worker's push.
std::vector<std::byte> frame_of(const ServerOptions& options, ServedWeights gradient,
                                std::uint32_t clock = 0, int worker = 1) {
  WorkerFrames frames(kServed, options, worker);
  Buffer frame(frames.push_capacity());
  const auto bytes =
      frame.span().first(frames.encode(spans<ConstValueSpan>(gradient), clock, frame.span()));
  return {bytes.begin(), bytes.end()};
}

TEST(ParameterShards, StalenessBoundLimitsPulls) {
  for (const std::uint32_t bound : {0u, 1u, 3u, kNoBound}) {
    const ServerOptions options{.push = "int8", .staleness = bound, .workers = {5, 7}};
    ParameterShard shard = shard_of(options);
    EXPECT_EQ(shard.join(5), 0u);
    EXPECT_FALSE(shard.may_pull(5, 0)) << "before the second has come";
    EXPECT_EQ(shard.join(7), 0u);
    const auto frame = frame_of(options, gradient_of(0, 0));
    const std::uint32_t pushes = bound == 0 ? 2 : 5;
    for (std::uint32_t clock = 0; clock < pushes; ++clock) {
      EXPECT_EQ(shard.may_pull(5, clock), clock <= bound);
      shard.push(5, clock, frame);
    }
    EXPECT_TRUE(shard.may_pull(7, 0));
    EXPECT_EQ(shard.waiting(5), bound == 0 ? 2u : 0u);
    shard.push(7, 0, frame);
    EXPECT_EQ(shard.may_pull(5, pushes), bound >= 4);
    shard.leave(7, true);
    EXPECT_TRUE(shard.may_pull(5, pushes)) << "nobody waits for who is gone";
    EXPECT_EQ(shard.waiting(5), 0u);
    EXPECT_EQ(shard.statistics().lost, std::vector<int>{7});
    EXPECT_EQ(shard.join(9), pushes) << "begins where the slowest is";
  }
}

TEST(ParameterShards, PushesWaitUntilAllWorkersJoin) {
  const ServerOptions options{.push = "int8", .workers = {0, 1}};
  ParameterShard shard = shard_of(options);
  const auto frame = frame_of(options, gradient_of(0, 0));
  shard.join(0);
  for (std::uint32_t clock = 0; clock < 2; ++clock) shard.push(0, clock, frame);
  EXPECT_EQ(shard.statistics().pushes, 0u);
  EXPECT_EQ(shard.join(1), 0u);
  shard.push(1, 0, frame);
  EXPECT_EQ(shard.statistics().pushes, 2u);
  EXPECT_EQ(shard.waiting(0), 1u);
  ParameterShard other = shard_of(options);
  other.join(0);
  other.push(0, 0, frame);
  other.leave(1, true);  // never joined
  EXPECT_EQ(other.statistics().pushes, 1u);
}

TEST(ParameterShards, UpdatesWaitForAllWorkersWithStalenessBound) {
  const ServerOptions options{.push = "none", .staleness = 3, .workers = {0, 1}};
  ParameterShard shard = shard_of(options);
  shard.join(0);
  for (std::uint32_t clock = 0; clock < 2; ++clock)
    shard.push(0, clock, frame_of(options, gradient_of(0, clock), clock, 0));
  EXPECT_EQ(shard.weights(1), Values(kServed[1]));
  EXPECT_EQ(shard.waiting(0), 2u);
  shard.join(1);
  EXPECT_EQ(shard.waiting(0), 0u);
  const Values first = gradient_of(0, 0)[1], second = gradient_of(0, 1)[1];
  const Values moved = shard.weights(1);
  for (std::size_t i = 0; i < moved.size(); ++i)
    ASSERT_NEAR(moved[i], -(first[i] + second[i]) / 2, 1e-6) << "each counts one of two workers";
}

// The server enforces a memory bound, because a worker may violate the protocol.
TEST(ParameterShards, ThirdUnansweredPushIsRejected) {
  for (const std::uint32_t bound : {0u, 3u}) {  // 3: no update before worker 1 has joined
    const ServerOptions options{.push = "none", .staleness = bound, .workers = {0, 1}};
    ParameterShard shard = shard_of(options);
    shard.join(0);
    if (bound == 0) shard.join(1);
    const auto push = [&](std::uint32_t clock) {
      shard.push(0, clock, frame_of(options, gradient_of(0, clock), clock, 0));
    };
    push(0);
    push(1);
    for (int i = 0; i < 3; ++i) EXPECT_THROW(push(2), InvalidArgumentError);
    EXPECT_EQ(shard.waiting(0), 2u);
    EXPECT_EQ(shard.statistics().refused, 3u);
    if (bound != 0) shard.join(1);
    shard.push(1, 0, frame_of(options, gradient_of(1, 0)));
    push(2);  // accepted after an earlier push was answered
    EXPECT_EQ(shard.statistics().pushes, bound == 0 ? 2u : 4u);
  }
}

TEST(ParameterShards, NonFinitePushIsRejectedWithoutUpdate) {
  for (const std::uint32_t bound : {0u, kNoBound})
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
      ServerOptions options{.push = "none", .staleness = bound};
      ServedWeights gradient = gradient_of(1, 0);
      gradient[3][77] = bad;
      const auto frame = frame_of(options, gradient);
      ParameterShard shard = shard_of(options);
      shard.join(1);
      shard.join(2);
      try {
        shard.push(1, 0, frame);
        ADD_FAILURE() << "was taken";
      } catch (const InvalidArgumentError& error) {
        EXPECT_STREQ(error.what(),
                     "worker 1's push for clock 0: the gradient of parameter 3 is not finite, and "
                     "was not added");
      }
      EXPECT_EQ(shard.statistics().refused, 1u);
      shard.push(1, 0, frame_of(options, gradient_of(1, 0)));
      shard.push(2, 0, frame_of(options, gradient_of(2, 0)));
      const Values first = gradient_of(1, 0)[3], second = gradient_of(2, 0)[3];
      const Values moved = shard.weights(3);
      for (std::size_t i = 0; i < moved.size(); ++i)
        ASSERT_NEAR(moved[i], -(first[i] + second[i]) / 2, 1e-6);
      options.require_finite = FiniteCheck::kOff;
      ParameterShard loose = shard_of(options);
      loose.join(1);
      loose.push(1, 0, frame);
      EXPECT_FALSE(std::isfinite(loose.weights(3)[77]));
    }
}

TEST(ParameterShards, OnlySilentBlockingWorkerIsExcluded) {
  const auto later = Clock::now() + std::chrono::hours(1);
  for (const bool pulls : {true, false}) {
    const ServerOptions options{.push = "none", .workers = {0, 1, 2}};
    ParameterShard shard = shard_of(options);
    for (const int worker : {0, 1}) shard.join(worker);
    EXPECT_EQ(shard.missing(), std::vector<int>{2});
    EXPECT_FALSE(shard.may_pull(0, 0));
    EXPECT_TRUE(shard.leave_out_silent(later).empty()) << "who waits for worker 2 to join";
    shard.join(2);
    EXPECT_TRUE(shard.missing().empty());
    for (const int worker : {0, 1}) {
      shard.push(worker, 0, frame_of(options, gradient_of(worker, 0), 0, worker));
      if (pulls) EXPECT_FALSE(shard.may_pull(worker, 1));
    }
    EXPECT_FALSE(shard.may_pull(2, 7)) << "a wait for a clock that is not its own is no wait";
    EXPECT_TRUE(shard.leave_out_silent(Clock::now() - std::chrono::hours(1)).empty());
    EXPECT_EQ(shard.leave_out_silent(later), std::vector<int>{2});
    EXPECT_EQ(shard.statistics().pushes, 2u);
    EXPECT_EQ(shard.statistics().lost, std::vector<int>{2});
    EXPECT_TRUE(shard.leave_out_silent(later).empty()) << "now both compute, and nobody waits";
    EXPECT_THROW(shard.push(2, 0, frame_of(options, gradient_of(2, 0))), InvalidArgumentError);
  }
}

TEST(ParameterShards, WorkerLostBeforeJoiningIsReported) {
  ParameterShard shard = shard_of({.workers = {0, 1}});
  shard.join(0);
  shard.leave(1, true);
  shard.leave(5, true);  // not an expected worker
  EXPECT_EQ(shard.statistics().lost, std::vector<int>{1});
  EXPECT_TRUE(shard.may_pull(0, 0));
}

TEST(ParameterShards, AllCallsFailAfterFailedUpdate) {
  const ServerOptions options{.push = "none", .workers = {0, 1}};
  ParameterShard shard =
      shard_of(options, [](std::span<const UpdatePart>) { throw std::runtime_error("no disk"); });
  shard.join(0);
  shard.join(1);
  shard.push(0, 0, frame_of(options, gradient_of(0, 0), 0, 0));
  EXPECT_THROW(shard.push(1, 0, frame_of(options, gradient_of(1, 0))), std::runtime_error);
  EXPECT_THROW(shard.may_pull(0, 0), std::runtime_error);
  EXPECT_THROW(shard.push(1, 1, frame_of(options, gradient_of(1, 1), 1)), std::runtime_error);
  EXPECT_THROW(shard.is_over(), std::runtime_error);
}

TEST(ParameterShards, ServerWithoutValuesUpdatesNothing) {
  const std::vector<Values> weights = {Values(3)};
  const std::vector<ConstValueSpan> views(weights.begin(), weights.end());
  const ServerOptions options{.push = "none"};
  const std::vector<std::size_t> counts = {3};
  int empty = 0, calls = 0;
  for (int server = 0; server < 3; ++server) {
    const auto update = [&](std::span<const UpdatePart> parts) {
      EXPECT_FALSE(parts.empty());
      calls += 1;
    };
    ParameterShard shard(views, update, options, server, 3);
    empty += shard.part(0).count == 0;
    WorkerFrames frames(counts, options, 0, server, 3);
    Buffer frame(frames.push_capacity());
    shard.join(0);
    shard.push(0, 0, frame.span().first(frames.encode(views, 0, frame.span())));
  }
  EXPECT_EQ(empty, 2);
  EXPECT_EQ(calls, 1);
}

TEST(ParameterShards, InvalidPushesAreRejectedWithoutUpdate) {
  for (const std::uint32_t bound : {0u, 2u}) {
    const ServerOptions options{.push = "int8", .staleness = bound};
    ParameterShard shard = shard_of(options);
    const auto frame = frame_of(options, gradient_of(0, 0));
    EXPECT_THROW(shard.push(1, 0, frame), InvalidArgumentError) << "has not joined";
    shard.join(1);
    EXPECT_THROW(shard.join(1), InvalidArgumentError);
    EXPECT_THROW(shard.push(1, 1, frame), InvalidArgumentError) << "a clock that is to come";
    EXPECT_THROW(
        shard.push(1, 0,
                   frame_of({.push = "int8", .staleness = bound, .model = 9}, gradient_of(0, 0))),
        WireError);
    EXPECT_THROW(
        shard.push(1, 0, frame_of({.push = "int4", .staleness = bound}, gradient_of(0, 0))),
        WireError);
    auto damaged = frame;
    damaged[damaged.size() / 2] ^= std::byte{1};
    EXPECT_THROW(shard.push(1, 0, damaged), WireError);
    EXPECT_THROW(shard.push(1, 0, ConstByteSpan(frame).first(80)), WireError);
    EXPECT_THROW(shard.push(1, 0, frame_of({.push = "int8", .staleness = 7}, gradient_of(0, 0))),
                 WireError);
    for (std::size_t i = 0; i < kServed.size(); ++i)
      EXPECT_EQ(shard.weights(i), Values(kServed[i])) << "weights have moved";
    shard.push(1, 0, frame);
    EXPECT_THROW(shard.push(1, 0, frame), InvalidArgumentError) << "a clock that is over";
    EXPECT_EQ(shard.statistics().pushes, 1u);
    EXPECT_EQ(shard.statistics().refused, 9u);
  }
}

// A worker decodes the server's weights and keeps the residuals of pushes.
TEST(ParameterShards, FramesRoundTripWithErrorFeedback) {
  const ServerOptions options{.push = "topk:density=0.1+ef", .pull = "none"};
  ParameterShard shard = shard_of(options);
  WorkerFrames frames(kServed, options, 3);
  EXPECT_EQ(frames.signature(), shard.signature());
  Buffer pushed(frames.push_capacity()), pulled(shard.pull_capacity());
  ServedWeights gradient = gradient_of(3, 0), weights = no_weights();
  shard.join(3);
  for (std::uint32_t clock = 0; clock < 50; ++clock)
    shard.push(
        3, clock,
        pushed.span().first(frames.encode(spans<ConstValueSpan>(gradient), clock, pushed.span())));
  frames.decode(pulled.span().first(shard.pull(3, 50, pulled.span())), spans<ValueSpan>(weights));
  std::vector<double> wanted(gradient[1].begin(), gradient[1].end());
  for (double& one : wanted) one *= -50;
  EXPECT_LT(squared_error(weights[1], wanted), 0.1);
  EXPECT_EQ(weights[4], shard.weights(4));
}

TEST(ParameterShards, RejectsUnsupportedCodecs) {
  EXPECT_THROW(shard_of({.push = "intsum"}), InvalidArgumentError);
  EXPECT_THROW(shard_of({.push = "lowrank:rank=2"}), InvalidArgumentError);
  EXPECT_THROW(shard_of({.push = "auto"}), InvalidArgumentError);
  EXPECT_THROW(shard_of({.pull = "int8+ef"}), InvalidArgumentError);
}

TEST(ParameterShards, MomentumMatchesTextbookFormula) {
  const Update update = sgd_update(0.5f, 0.9f);
  Values weights = {1.0f}, gradient = {2.0f};
  const UpdatePart part{3, weights, gradient};
  update({&part, 1});
  EXPECT_FLOAT_EQ(weights[0], 1 - 0.5f * 2);
  update({&part, 1});
  EXPECT_FLOAT_EQ(weights[0], -0.5f * (0.9f * 2 + 2));
}

}  // namespace
}  // namespace tersor::testing
