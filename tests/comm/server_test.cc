// The parameter server over a transport: waits and error reports.
#include "tests/comm/served.h"

#include "comm/server/messages.h"

#include <gtest/gtest.h>
#include <tersor/server.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tersor::testing {
namespace {

using namespace std::chrono_literals;

/// A run with servers on the first ranks and workers on the ranks from `first_worker` on.
struct ServedRun {
  int ranks = 4, servers = 1, first_worker = 1;
  ServerOptions options = {};

  /// Runs `work(client, worker)` on all workers, then combines the weights of all servers.
  template <typename Work>
  ServedWeights run(const Work& work) const {
    ServedWeights whole = no_weights();
    std::mutex mutex;
    run_ranks(ranks, {}, [&](Transport& transport) {
      const int rank = transport.rank();
      std::vector<std::unique_ptr<Transport>> channels;
      while (std::ssize(channels) < servers) channels.push_back(transport.isolated_channel());
      std::unique_ptr<ParameterShard> shard;
      std::thread serving;
      ServedWeights begin = no_weights();
      if (rank < servers) {
        shard = std::make_unique<ParameterShard>(spans<ConstValueSpan>(begin), sgd_update(1.0f),
                                                 told(), rank, servers);
        serving = std::thread([&] { serve(*channels[static_cast<std::size_t>(rank)], *shard); });
      }
      if (rank >= first_worker) {
        std::vector<ServerAt> at;
        for (int server = 0; server < servers; ++server)
          at.push_back({channels[static_cast<std::size_t>(server)].get(), server,
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

// Zero weights, learning rate 1 and no bound: the weights become the negated sum.
TEST(ParameterServers, BulkSynchronousMatchesOneShotAllreduce) {
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

// Worker 0 trains on its pulled weights. All workers receive the same weights in each clock.
TEST(ParameterServers, PulledWeightsIncludeAllPushes) {
  for (const int first : {0, 1, 2}) {  // all servers work, too; one of them; none
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

// The last push waits there for the other worker's push of the same clock.
TEST(ParameterServers, ServingWorkerMayLeaveAfterLastPush) {
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

// Residuals join the next push, so the pushes sum to the gradients except for the last residual.
TEST(ParameterServers, ErrorFeedbackReducesErrorOfPushes) {
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

constexpr auto kShort = 4s;  // of clients; the server's timeout is half as long

struct Gone {};  ///< leaves without notice

/// Rank 0 serves. The other ranks disconnect when their bodies return.
void serve_mortals(Update update, const ServerOptions& options,
                   const std::function<void(ParameterClient&, int)>& work,
                   const std::function<void(ParameterShard&, Transport&)>& as_server,
                   std::chrono::milliseconds timeout = kDefaultTimeout) {
  constexpr int kRanks = 4;
  auto transports = make_inprocess_transports(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = std::move(transports[static_cast<std::size_t>(rank)]);
      const auto isolated = transport->isolated_channel();
      ServedWeights begin = no_weights();
      if (rank == 0) {
        ParameterShard shard(spans<ConstValueSpan>(begin), update, options);
        return as_server(shard, *isolated);
      }
      try {
        ParameterClient client({{isolated.get(), 0}}, kServed, options, timeout);
        work(client, rank);
      } catch (const Gone&) {
        EXPECT_EQ(rank, 2);
      }
    });
}

TEST(ParameterServers, LostWorkerDoesNotBlockOthers) {
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
      [](ParameterShard& shard, Transport& isolated) {
        serve(isolated, shard);
        EXPECT_EQ(shard.statistics().pushes, 45u);
        EXPECT_EQ(shard.statistics().lost, std::vector<int>{2});
      });
}

TEST(ParameterServers, FailedUpdateIsReportedToAllWorkers) {
  std::atomic<int> told = 0;
  const Update fails = [](std::span<const UpdatePart>) { throw std::runtime_error("no disk"); };
  serve_mortals(
      fails, {.workers = {1, 2, 3}},
      [&](ParameterClient& client, int worker) {
        ServedWeights weights = no_weights(), gradient = gradient_of(worker, 0);
        client.push(spans<ConstValueSpan>(gradient));
        try {
          client.pull(spans<ValueSpan>(weights));
        } catch (const InvalidArgumentError& error) {
          EXPECT_NE(std::string(error.what()).find("no disk"), std::string::npos) << error.what();
          told += 1;
        }
      },
      [](ParameterShard& shard, Transport& isolated) {
        EXPECT_THROW(serve(isolated, shard), std::runtime_error);
      });
  EXPECT_EQ(told, 3);
}

// Like a machine without power, the worker closes nothing. Others wait until the server's timeout.
TEST(ParameterServers, SilentWorkerBlocksOthersOnlyUntilTimeout) {
  std::atomic<int> trained = 0;
  serve_mortals(
      sgd_update(1.0f), {.workers = {1, 2, 3}},
      [&](ParameterClient& client, int worker) {
        ServedWeights weights = no_weights();
        for (std::uint32_t clock = 0; clock < 4; ++clock) {
          client.pull(spans<ValueSpan>(weights));
          if (worker == 2) {
            while (trained < 2) std::this_thread::sleep_for(1ms);
            throw Gone();
          }
          ServedWeights gradient = gradient_of(worker, clock);
          client.push(spans<ConstValueSpan>(gradient));
        }
        trained += 1;
      },
      [](ParameterShard& shard, Transport& isolated) {
        serve(isolated, shard, 60s, 500ms);
        EXPECT_EQ(shard.statistics().lost, std::vector<int>{2});
      });
}

// The server's timeout expires before the clients' timeout, also during leave().
TEST(ParameterServers, SilentWorkerFailsAloneWithEqualTimeouts) {
  std::atomic<int> left = 0;
  const auto train = [&](ParameterClient& client, int worker) {
    ServedWeights gradient = gradient_of(worker, 0);
    if (worker == 2) {
      const auto until = Clock::now() + 60s;
      while (left < 2 && Clock::now() < until) std::this_thread::sleep_for(1ms);
      client.push(spans<ConstValueSpan>(gradient));
      expect_error<InvalidArgumentError>([&] { client.flush(); }, "was left out");
      throw Gone();
    }
    client.push(spans<ConstValueSpan>(gradient));
    EXPECT_NO_THROW(client.leave());
    left += 1;
  };
  serve_mortals(
      sgd_update(1.0f), {.workers = {1, 2, 3}}, train,
      [](ParameterShard& shard, Transport& isolated) {
        serve(isolated, shard, kShort);
        EXPECT_EQ(shard.statistics().lost, std::vector<int>{2});
        EXPECT_EQ(shard.statistics().pushes, 2u);
      },
      kShort);
  EXPECT_EQ(left, 2);
}

TEST(ParameterServers, RejectsStragglerTimeoutAndReportsUnjoinedWorkers) {
  auto transports = make_inprocess_transports(1);
  const auto transport = std::move(transports[0]);
  const auto isolated = transport->isolated_channel();
  ServedWeights begin = no_weights();
  ParameterShard shard(spans<ConstValueSpan>(begin), sgd_update(1.0f), {.workers = {0}});
  EXPECT_THROW(serve(*isolated, shard, 5s, 5s), InvalidArgumentError);
  expect_error<TransportError>([&] { serve(*isolated, shard, 20ms); }, "did not join: ranks 0");
}

// Worker 1 requests weights and receives nothing: the server keeps the unsent messages.
TEST(ParameterServers, ServerBoundsPullsOfNonReceivingWorker) {
  constexpr std::uint64_t kPulls = 80, kAhead = 128 / 4;
  const std::vector<std::size_t> counts = {1 << 20};
  std::atomic<bool> over = false;
  const ServerOptions options{.pull = "none", .workers = {1, 2}};
  run_ranks(3, {}, [&](Transport& transport) {
    const auto isolated = transport.isolated_channel();
    ServedWeights weights = {Values(counts[0])};
    if (transport.rank() == 0) {
      ParameterShard shard(spans<ConstValueSpan>(weights), sgd_update(1.0f), options);
      serve(*isolated, shard);
      EXPECT_EQ(shard.statistics().lost, std::vector<int>{1});
      EXPECT_LT(shard.statistics().pulls, kPulls + kAhead + 20);
    } else if (transport.rank() == 1) {
      ServerMailbox out(*isolated, kServerMailbox, 0);
      out.send(0, {.type = ServerMessage::kJoin,
                   .signature = WorkerFrames(counts, options, 1).signature()});
      for (std::uint64_t i = 0; i < kPulls; ++i) out.send(0, {.type = ServerMessage::kPull});
      while (!over) std::this_thread::sleep_for(1ms);
    } else {
      ParameterClient client({{isolated.get(), 0}}, counts, options);
      for (std::uint64_t i = 0; i < kPulls; ++i) client.pull(spans<ValueSpan>(weights));
      client.leave();
      over = true;
    }
  });
}

// A worker on the server's rank rethrows the update's exception. Other workers receive its text.
TEST(ParameterServers, FailedUpdateIsReportedToServingWorker) {
  auto transports = make_inprocess_transports(2);
  std::vector<std::jthread> threads;
  std::atomic<int> told = 0;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = std::move(transports[static_cast<std::size_t>(rank)]);
      const auto isolated = transport->isolated_channel();
      const ServerOptions options{.workers = {0, 1}};
      ServedWeights begin = no_weights(), gradient = gradient_of(rank, 0);
      const Update fails = [](std::span<const UpdatePart>) { throw std::runtime_error("no disk"); };
      std::unique_ptr<ParameterShard> shard;
      std::jthread serving;
      if (rank == 0) {
        shard = std::make_unique<ParameterShard>(spans<ConstValueSpan>(begin), fails, options);
        serving = std::jthread([&] { EXPECT_THROW(serve(*isolated, *shard), std::runtime_error); });
      }
      ParameterClient client({{isolated.get(), 0, shard.get()}}, kServed, options);
      try {
        client.push(spans<ConstValueSpan>(gradient));
        client.pull(spans<ValueSpan>(begin));
      } catch (const std::exception& error) {
        told += std::string(error.what()).find("no disk") != std::string::npos;
      }
      EXPECT_THROW(client.flush(), std::exception) << "the servers' state is not known any more";
    });
  threads.clear();
  EXPECT_EQ(told, 2);
}

TEST(ParameterServers, NonFiniteGradientIsNotPushed) {
  const ServedRun run{.ranks = 3, .options = {.push = "none", .reduction = Reduction::kSum}};
  const ServedWeights weights = run.run([](ParameterClient& client, int worker) {
    ServedWeights gradient = gradient_of(worker, 0);
    gradient[1][77] = std::numeric_limits<float>::infinity();
    EXPECT_THROW(client.push(spans<ConstValueSpan>(gradient)), InvalidArgumentError);
    EXPECT_EQ(client.clock(), 0u);
    gradient[1][77] = 1;
    client.push(spans<ConstValueSpan>(gradient));
  });
  EXPECT_FLOAT_EQ(weights[1][77], -2.0f);
}

TEST(ParameterServers, PushWithWrongShapeIsRejected) {
  ServedRun run{.ranks = 4, .options = {.staleness = 2}};
  std::atomic<int> refused = 0;
  run.run([&](ParameterClient& client, int) {
    ServedWeights gradient = gradient_of(0, 0);
    for (int clock = 0; clock < 3; ++clock) client.push(spans<ConstValueSpan>(gradient));
    ServedWeights other = {Values(3)};
    EXPECT_THROW(client.push(spans<ConstValueSpan>(other)), InvalidArgumentError);
    refused += 1;
  });
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace tersor::testing
