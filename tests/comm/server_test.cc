// The parameter server: who waits for whom, what moves the weights, and what is refused.
#include "tests/comm/ranks.h"

#include <tersor/server.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace tersor::testing {
namespace {

using namespace std::chrono_literals;

const std::vector<std::size_t> kServed = {1, 5'000, 0, 700, 12'345};  // values of parameters

using ServedWeights = std::vector<Values>;

ServedWeights no_weights() {
  ServedWeights weights;
  for (const std::size_t count : kServed) weights.emplace_back(count);
  return weights;
}

ServedWeights gradient_of(int worker, std::uint32_t clock) {
  ServedWeights gradient;
  for (const std::size_t count : kServed)
    gradient.push_back(gaussian(count, 100 * clock + static_cast<std::uint64_t>(worker) + count));
  return gradient;
}

template <typename Span>
std::vector<Span> spans(ServedWeights& weights) {
  return {weights.begin(), weights.end()};
}

ParameterShard shard_of(const ServerOptions& options, Update update = sgd_update(1.0f)) {
  ServedWeights weights = no_weights();
  const auto views = spans<ConstValueSpan>(weights);
  return ParameterShard(views, std::move(update), options);
}

/// What a worker pushes without a transport.
std::vector<std::byte> frame_of(const ServerOptions& options, ServedWeights gradient,
                                std::uint32_t clock = 0, int worker = 1) {
  WorkerFrames frames(kServed, options, worker);
  Buffer frame(frames.push_capacity());
  const auto bytes =
      frame.span().first(frames.encode(spans<ConstValueSpan>(gradient), clock, frame.span()));
  return {bytes.begin(), bytes.end()};
}

TEST(ParameterShards, NobodyIsAheadByMoreThanTheBound) {
  for (const std::uint32_t bound : {0u, 1u, 3u, kNoBound}) {
    const ServerOptions options{.push = "int8", .staleness = bound, .workers = {5, 7}};
    ParameterShard shard = shard_of(options);
    EXPECT_EQ(shard.join(5), 0u);
    EXPECT_FALSE(shard.may_pull(5, 0)) << "before the second has come";
    EXPECT_EQ(shard.join(7), 0u);
    const auto frame = frame_of(options, gradient_of(0, 0));
    for (std::uint32_t clock = 0; clock < 5; ++clock) {
      EXPECT_EQ(shard.may_pull(5, clock), clock <= bound);
      shard.push(5, clock, frame);
    }
    EXPECT_TRUE(shard.may_pull(7, 0));
    EXPECT_EQ(shard.waiting(5), bound == 0 ? 5u : 0u);
    shard.push(7, 0, frame);
    EXPECT_EQ(shard.may_pull(5, 5), bound >= 4);
    shard.leave(7, true);
    EXPECT_TRUE(shard.may_pull(5, 5)) << "nobody waits for who is gone";
    EXPECT_EQ(shard.waiting(5), 0u);
    EXPECT_EQ(shard.statistics().lost, std::vector<int>{7});
    EXPECT_EQ(shard.join(9), 5u) << "begins where the slowest is";
  }
}

TEST(ParameterShards, WhoComesFirstWaitsForTheOthers) {
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
  other.leave(1, true);  // which never came
  EXPECT_EQ(other.statistics().pushes, 1u);
}

TEST(ParameterShards, WhatIsWrongIsRefusedAndAddsNothing) {
  for (const std::uint32_t bound : {0u, 2u}) {
    const ServerOptions options{.push = "int8", .staleness = bound};
    ParameterShard shard = shard_of(options);
    const auto frame = frame_of(options, gradient_of(0, 0));
    EXPECT_THROW(shard.push(1, 0, frame), InvalidArgument) << "has not joined";
    shard.join(1);
    EXPECT_THROW(shard.join(1), InvalidArgument);
    EXPECT_THROW(shard.push(1, 1, frame), InvalidArgument) << "a clock that is to come";
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
    EXPECT_THROW(shard.push(1, 0, frame), InvalidArgument) << "a clock that is over";
    EXPECT_EQ(shard.statistics().pushes, 1u);
    EXPECT_EQ(shard.statistics().refused, 8u);
  }
}

// Without a transport: what a worker decodes is what the server has, and residuals are the
// worker's.
TEST(ParameterShards, FramesGoByAnyWay) {
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

TEST(ParameterShards, OptionsThatNoServerTakes) {
  EXPECT_THROW(shard_of({.push = "intsum"}), InvalidArgument);
  EXPECT_THROW(shard_of({.push = "lowrank:rank=2"}), InvalidArgument);
  EXPECT_THROW(shard_of({.push = "auto"}), InvalidArgument);
  EXPECT_THROW(shard_of({.pull = "int8+ef"}), InvalidArgument);
}

TEST(ParameterShards, MomentumIsTheTextbooks) {
  const Update update = sgd_update(0.5f, 0.9f);
  Values weights = {1.0f}, gradient = {2.0f};
  const UpdatePart part{3, weights, gradient};
  update({&part, 1});
  EXPECT_FLOAT_EQ(weights[0], 1 - 0.5f * 2);
  update({&part, 1});
  EXPECT_FLOAT_EQ(weights[0], -0.5f * (0.9f * 2 + 2));
}

/// A run of servers on the first ranks of so many, and workers on those from `first_worker` on.
struct ServedRun {
  int ranks = 4, servers = 1, first_worker = 1;
  ServerOptions options = {};

  /// `work(client, worker)`, then every server's weights are put together.
  template <typename Work>
  ServedWeights run(const Work& work) const {
    ServedWeights whole = no_weights();
    std::mutex mutex;
    run_ranks(ranks, {}, [&](Transport& transport) {
      const int rank = transport.rank();
      std::vector<std::unique_ptr<Transport>> lifelines;
      for (int server = 0; server < servers; ++server) lifelines.push_back(transport.lifeline());
      std::unique_ptr<ParameterShard> shard;
      std::thread serving;
      ServedWeights begin = no_weights();
      if (rank < servers) {
        shard = std::make_unique<ParameterShard>(spans<ConstValueSpan>(begin), sgd_update(1.0f),
                                                 told(), rank, servers);
        serving = std::thread([&] { serve(*lifelines[static_cast<std::size_t>(rank)], *shard); });
      }
      if (rank >= first_worker) {
        std::vector<ServerAt> at;
        for (int server = 0; server < servers; ++server)
          at.push_back({lifelines[static_cast<std::size_t>(server)].get(), server,
                        server == rank ? shard.get() : nullptr});
        ParameterClient client(at, kServed, told());
        work(client, rank - first_worker);
        client.leave();
      }
      if (rank < servers) {
        serving.join();
        const std::lock_guard lock(mutex);
        gather(*shard, rank, whole);
      }
    });
    return whole;
  }

  ServerOptions told() const {
    ServerOptions more = options;
    for (int rank = first_worker; rank < ranks; ++rank) more.workers.push_back(rank);
    return more;
  }

  void gather(const ParameterShard& shard, int server, ServedWeights& whole) const {
    for (std::uint32_t i = 0; i < kServed.size(); ++i) {
      const Segment part = shard.part(i);
      const Values own = shard.weights(i);
      EXPECT_EQ(part.count, own.size()) << server;
      std::ranges::copy(own, whole[i].begin() + static_cast<std::ptrdiff_t>(part.first_index));
    }
  }
};

// With a rate of 1, weights of zeros and no bound: less than nothing is what an allreduce yields.
TEST(ParameterServers, BulkSynchronousIsAnAllreduceByOneShot) {
  for (const char* codec : {"int8", "int4", "none", "hadamard:bits=4"})
    for (const int servers : {1, 3}) {
      const ServedRun run{.ranks = 4 + servers,
                          .servers = servers,
                          .first_worker = servers,
                          .options = {.push = codec, .reduction = Reduction::kSum}};
      const ServedWeights weights = run.run([](ParameterClient& client, int worker) {
        ServedWeights gradient = gradient_of(worker, 0);
        client.push(spans<ConstValueSpan>(gradient));
      });
      for (std::size_t i = 0; i < kServed.size(); ++i) {
        std::vector<Values> inputs;
        for (int worker = 0; worker < 4; ++worker) inputs.push_back(gradient_of(worker, 0)[i]);
        const auto sums = on_ranks(inputs, [&](Transport& transport, Values& values) {
          allreduce(transport, values,
                    {.codec = codec,
                     .algorithm = Algorithm::kOneShot,
                     .parameter = static_cast<std::uint32_t>(i)});
        });
        Values moved = weights[i];
        for (float& one : moved) one = 0.0f - one;
        EXPECT_EQ(moved, sums[0]) << codec << ", " << servers << " servers, parameter " << i;
      }
    }
}

// Worker 0 trains on what it pulls: all workers see the same weights in each clock.
TEST(ParameterServers, WorkersPullWhatAllHavePushed) {
  for (const int first : {0, 1, 2}) {  // the servers work, too; one of them; none
    const ServedRun run{.ranks = 4,
                        .servers = 2,
                        .first_worker = first,
                        .options = {.push = "none", .pull = "none"}};
    const int workers = 4 - first;
    run.run([&](ParameterClient& client, int worker) {
      ServedWeights weights = no_weights(), wanted = no_weights();
      for (std::uint32_t clock = 0; clock < 6; ++clock) {
        EXPECT_EQ(client.clock(), clock);
        client.pull(spans<ValueSpan>(weights));
        for (std::size_t i = 0; i < kServed.size(); ++i)
          for (std::size_t j = 0; j < kServed[i]; ++j)
            ASSERT_NEAR(weights[i][j], wanted[i][j], 1e-4) << clock;
        ServedWeights gradient = gradient_of(worker, clock);
        client.push(spans<ConstValueSpan>(gradient));
        for (int other = 0; other < workers; ++other) {
          const ServedWeights theirs = gradient_of(other, clock);
          for (std::size_t i = 0; i < kServed.size(); ++i)
            for (std::size_t j = 0; j < kServed[i]; ++j)
              wanted[i][j] -= theirs[i][j] / static_cast<float>(workers);
        }
      }
    });
  }
}

// Its last push waits there for the others' of that clock.
TEST(ParameterServers, WhoServesTooLeavesAfterItsLastPush) {
  const ServedRun run{
      .ranks = 2, .first_worker = 0, .options = {.push = "none", .reduction = Reduction::kSum}};
  const ServedWeights weights = run.run([](ParameterClient& client, int worker) {
    if (worker == 1) std::this_thread::sleep_for(50ms);
    ServedWeights gradient = gradient_of(worker, 0);
    client.push(spans<ConstValueSpan>(gradient));
  });
  const Values first = gradient_of(0, 0)[1], second = gradient_of(1, 0)[1];
  for (std::size_t i = 0; i < first.size(); ++i)
    ASSERT_FLOAT_EQ(weights[1][i], 0.0f - (first[i] + second[i])) << i;
}

// What a codec leaves out goes with the next push: the sum of all is what was given, but for that.
TEST(ParameterServers, WorkersKeepWhatTheirCodecLeavesOut) {
  const auto moved_by = [](const std::string& codec) {
    const ServedRun run{.ranks = 2, .options = {.push = codec}};
    return run.run([](ParameterClient& client, int worker) {
      for (std::uint32_t clock = 0; clock < 50; ++clock) {
        ServedWeights gradient = gradient_of(worker, 0);
        client.push(spans<ConstValueSpan>(gradient));
      }
    });
  };
  const Values exact = gradient_of(0, 0)[1];
  std::vector<double> wanted(exact.begin(), exact.end());
  for (double& one : wanted) one *= -50;
  const double with = squared_error(moved_by("topk:density=0.1+ef")[1], wanted);
  const double without = squared_error(moved_by("topk:density=0.1")[1], wanted);
  EXPECT_LT(with, 0.1);
  EXPECT_GT(without, 0.3);
}

struct Gone {};  ///< without a word

/// Rank 0 serves; the others go as their bodies are over.
void serve_mortals(Update update, const ServerOptions& options,
                   const std::function<void(ParameterClient&, int)>& work,
                   const std::function<void(ParameterShard&, Transport&)>& as_server) {
  constexpr int kRanks = 4;
  InProcessWorld world(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = world.transport(rank);
      const auto lifeline = transport->lifeline();
      ServedWeights begin = no_weights();
      if (rank == 0) {
        ParameterShard shard(spans<ConstValueSpan>(begin), update, options);
        return as_server(shard, *lifeline);
      }
      try {
        ParameterClient client({{lifeline.get(), 0}}, kServed, options);
        work(client, rank);
      } catch (const Gone&) {
        EXPECT_EQ(rank, 2);
      }
    });
}

TEST(ParameterServers, AWorkerThatIsGoneHoldsNobodyUp) {
  serve_mortals(
      sgd_update(1.0f), {.workers = {1, 2, 3}},
      [](ParameterClient& client, int worker) {
        ServedWeights weights = no_weights();
        for (std::uint32_t clock = 0; clock < 20; ++clock) {
          client.pull(spans<ValueSpan>(weights));
          if (worker == 2 && clock == 5) throw Gone();
          ServedWeights gradient = gradient_of(worker, clock);
          client.push(spans<ConstValueSpan>(gradient));
        }
        EXPECT_EQ(client.clock(), 20u);
      },
      [](ParameterShard& shard, Transport& lifeline) {
        serve(lifeline, shard);
        EXPECT_EQ(shard.statistics().pushes, 45u);
        EXPECT_EQ(shard.statistics().lost, std::vector<int>{2});
      });
}

TEST(ParameterServers, AnUpdateThatFailsIsToldToAll) {
  std::atomic<int> told = 0;
  const Update fails = [](std::span<const UpdatePart>) { throw std::runtime_error("no disk"); };
  serve_mortals(
      fails, {.workers = {1, 2, 3}},
      [&](ParameterClient& client, int worker) {
        ServedWeights weights = no_weights(), gradient = gradient_of(worker, 0);
        client.push(spans<ConstValueSpan>(gradient));
        try {
          client.pull(spans<ValueSpan>(weights));
        } catch (const InvalidArgument& error) {
          EXPECT_NE(std::string(error.what()).find("no disk"), std::string::npos) << error.what();
          told += 1;
        }
      },
      [](ParameterShard& shard, Transport& lifeline) {
        EXPECT_THROW(serve(lifeline, shard), std::runtime_error);
      });
  EXPECT_EQ(told, 3);
}

TEST(ParameterServers, WhoHasOtherOptionsIsToldAndTheOthersGoOn) {
  ServedRun run{.ranks = 4, .options = {.staleness = 2}};
  std::atomic<int> refused = 0;
  run.run([&](ParameterClient& client, int) {
    ServedWeights gradient = gradient_of(0, 0);
    for (int clock = 0; clock < 3; ++clock) client.push(spans<ConstValueSpan>(gradient));
    ServedWeights other = {Values(3)};
    EXPECT_THROW(client.push(spans<ConstValueSpan>(other)), InvalidArgument);
    refused += 1;
  });
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace tersor::testing
