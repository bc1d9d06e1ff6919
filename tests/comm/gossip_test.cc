// Gossip averaging: connected ranks, convergence rate, and invariance of the mean.
#include "comm/gossip/lost_edges.h"
#include "tests/comm/ranks.h"

#include <tersor/error.h>
#include <tersor/gossip.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <latch>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tersor::testing {
namespace {

constexpr std::size_t kMixed = 6'000;

TEST(Topologies, NamedTopologiesHaveExpectedWeightsAndDegrees) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 12, 16})
    for (const char* name : {"ring", "torus", "exponential"}) {
      const Topology made = Topology::named(name, ranks);
      ASSERT_EQ(made.ranks(), ranks);
      for (int rank = 0; rank < ranks; ++rank) {
        double sum = 0;
        for (const Edge& edge : made.edges(rank)) sum += edge.weight;
        EXPECT_LT(sum, 1.0);
        EXPECT_EQ(sum > 0, ranks > 1) << name << " " << ranks;
      }
    }
  EXPECT_EQ(Topology::ring(16).edges(3).size(), 2u);
  EXPECT_EQ(Topology::torus(4, 4).edges(3).size(), 4u);
  EXPECT_EQ(Topology::exponential(16).edges(3).size(), 7u);
}

TEST(Topologies, InvalidGraphsAreRejectedWithReason) {
  using Edges = std::vector<std::vector<Edge>>;
  const auto error = [](const Edges& edges) {
    return error_of<InvalidArgumentError>([&] { Topology made(edges); });
  };
  EXPECT_TRUE(says(error({{{1, 0.5}}, {{0, 0.4}}}), "give equal weights above 0"));
  EXPECT_TRUE(says(error({{{1, 0.5}}, {}}), "give equal weights above 0"));
  EXPECT_TRUE(says(error({{{1, -0.5}}, {{0, -0.5}}}), "above 0"));
  EXPECT_TRUE(says(error({{{0, 0.5}}}), "each once"));
  EXPECT_TRUE(says(error({{{7, 0.5}}}), "each once"));
  EXPECT_TRUE(says(error({{{1, 0.6}, {2, 0.6}}, {{0, 0.6}}, {{0, 0.6}}}), "at most 1"));
  EXPECT_TRUE(says(error({{{2, 0.5}}, {{3, 0.5}}, {{0, 0.5}}, {{1, 0.5}}}), "{0, 2} {1, 3}"));
  EXPECT_TRUE(says(error({}), "edges is empty"));
  EXPECT_TRUE(says(error_of<InvalidArgumentError>([] { Topology::named("star", 4); }),
                   "ring, torus or exponential"));
}

/// The distance of the ranks from the mean (root of the sum of squares), and the mean.
struct Consensus {
  double distance = 0;
  std::vector<double> mean = std::vector<double>(kMixed);

  explicit Consensus(const std::vector<Values>& all) {
    for (const Values& one : all)
      for (std::size_t i = 0; i < kMixed; ++i) mean[i] += one[i] / static_cast<double>(all.size());
    for (const Values& one : all)
      for (std::size_t i = 0; i < kMixed; ++i) distance += (one[i] - mean[i]) * (one[i] - mean[i]);
    distance = std::sqrt(distance);
  }
};

/// The weights of all ranks after `steps` mixing steps without training.
std::vector<Values> after_mixing(const Topology& topology, const GossipOptions& options,
                                 int steps) {
  return on_ranks(gradients(topology.ranks(), kMixed), [&](Transport& transport, Values& values) {
    Gossip gossip(transport, topology, options);
    gossip.add("all but the last", ValueSpan(values).subspan(0, kMixed - 1));
    gossip.add("the last", ValueSpan(values).subspan(kMixed - 1, 1));
    for (int step = 0; step < steps; ++step) {
      if (step % 2 == 0) gossip.begin();
      gossip.mix();
    }
    EXPECT_EQ(gossip.statistics().steps, static_cast<std::uint64_t>(steps));
  });
}

/// The second largest magnitude of the mixing matrix's eigenvalues, by power iteration.
double second_eigenvalue(const Topology& topology) {
  const auto ranks = static_cast<std::size_t>(topology.ranks());
  std::vector<double> x(ranks);
  for (std::size_t i = 0; i < ranks; ++i) x[i] = std::sin(1.0 + 3.7 * static_cast<double>(i * i));
  double factor = 0;
  for (int round = 0; round < 400; ++round) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(ranks);
    std::vector<double> next(ranks);
    double before = 0, after = 0;
    for (double& one : x) one -= mean;
    for (std::size_t i = 0; i < ranks; ++i) {
      next[i] = x[i];
      for (const Edge& edge : topology.edges(static_cast<int>(i)))
        next[i] += edge.weight * (x[static_cast<std::size_t>(edge.rank)] - x[i]);
      before += x[i] * x[i];
      after += next[i] * next[i];
    }
    factor = std::sqrt(after / before);
    for (std::size_t i = 0; i < ranks; ++i) x[i] = next[i] / std::sqrt(after);
  }
  return factor;
}

// Exact averaging reduces the distance by the eigenvalue per step, in the long run.
TEST(Gossips, ConvergesAtLeastAsFastAsSecondEigenvalue) {
  for (const char* name : {"ring", "torus"})
    for (const char* codec : {"none", "int8"}) {
      const Topology topology = Topology::named(name, 16);
      const double eigenvalue = second_eigenvalue(topology);
      const double first = Consensus(after_mixing(topology, {.codec = codec}, 10)).distance;
      const double later = Consensus(after_mixing(topology, {.codec = codec}, 20)).distance;
      EXPECT_LT(later / first, std::pow(eigenvalue, 10) * 1.05) << name << " " << codec;
    }
}

TEST(Gossips, MixingPreservesTheMean) {
  for (const char* codec :
       {"none", "int8", "int4", "topk:density=0.1", "int8:rounding=stochastic"}) {
    const auto inputs = gradients(8, kMixed);
    const Consensus before(inputs);
    const Consensus after(after_mixing(Topology::ring(8), {.codec = codec}, 25));
    for (std::size_t i = 0; i < kMixed; ++i)
      ASSERT_NEAR(after.mean[i], before.mean[i], 1e-5) << codec;
  }
}

// Accumulated sums of large weights would retain rounding errors, and the errors would bias the
// mean in every later step.
TEST(Gossips, MixingPreservesTheMeanOfLargeWeights) {
  auto inputs = gradients(8, kMixed);
  for (Values& one : inputs)
    for (float& value : one) value += 50;
  const Consensus before(inputs);
  const auto mixed = on_ranks(inputs, [&](Transport& transport, Values& values) {
    Gossip gossip(transport, Topology::ring(8), {.codec = "int8"});
    gossip.add("w", values);
    for (int step = 0; step < 400; ++step) gossip.mix();
  });
  const Consensus after(mixed);
  for (std::size_t i = 0; i < kMixed; ++i) ASSERT_NEAR(after.mean[i], before.mean[i], 1.5e-4);
}

// A rounding error retained in an f32 sum moves the mean in each step, here by 2.5e-5.
TEST(Gossips, MeanDoesNotDriftOverManySteps) {
  for (const char* codec : {"none", "int8"}) {
    const auto inputs = gradients(8, kMixed);
    const Consensus before(inputs);
    const auto mixed = on_ranks(inputs, [&](Transport& transport, Values& values) {
      Gossip gossip(transport, Topology::ring(8), {.codec = codec});
      gossip.add("w", ValueSpan(values).subspan(0, 256));
      for (int step = 0; step < 1'600; ++step) gossip.mix();
    });
    const Consensus after(mixed);
    double squares = 0;
    for (std::size_t i = 0; i < 256; ++i) squares += std::pow(after.mean[i] - before.mean[i], 2);
    EXPECT_LT(std::sqrt(squares / 256), 1e-6) << codec;
  }
}

TEST(Gossips, NonFiniteWeightsAreRejected) {
  on_ranks(gradients(2, kMixed), [](Transport& transport, Values& values) {
    Gossip gossip(transport, Topology::ring(2));
    gossip.add("w", values);
    gossip.mix();
    const float retained = std::exchange(values[9], std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { gossip.mix(); }), "w is not finite"));
    values[9] = retained;
    gossip.mix();
    EXPECT_EQ(gossip.statistics().steps, 2u);
  });
}

// Strongly lossy codecs need smaller steps and still converge.
TEST(Gossips, CompressedMixingApproachesConsensus) {
  const double before = Consensus(gradients(8, kMixed)).distance;
  for (const char* codec :
       {"int4", "topk:density=0.1", "blocktopk:density=0.03", "hadamard:bits=1"}) {
    const double after = Consensus(after_mixing(Topology::ring(8), {.codec = codec}, 300)).distance;
    EXPECT_LT(after, 1e-2 * before) << codec;
  }
}

TEST(Gossips, StepSizeMismatchNamesTheRankOnAllRanks) {
  on_ranks(gradients(3, kMixed), [](Transport& transport, Values& values) {
    const double step_size = transport.rank() == 2 ? 0.4 : 0.5;
    try {
      Gossip gossip(transport, Topology::ring(3), {.step_size = step_size});
      gossip.add("w", values);
      gossip.mix();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TransportError& error) {
      ASSERT_EQ(error.disagreement().size(), 1u) << error.what();
      EXPECT_EQ(error.disagreement().front().name, "step_size (times 1e9)");
      EXPECT_EQ(error.disagreement().front().other_rank, 2);
    }
  });
}

TEST(Gossips, InvalidOptionsAndCallsAreRejected) {
  on_ranks(gradients(2, kMixed), [](Transport& transport, Values& values) {
    const auto error = [&](const GossipOptions& options, int ranks = 2) {
      return error_of<InvalidArgumentError>([&] {
        Gossip gossip(transport, Topology::ring(ranks), options);
        gossip.add("w", values);
        gossip.mix();
      });
    };
    EXPECT_TRUE(says(error({.codec = "int8+ef"}), "leave out +ef"));
    EXPECT_TRUE(says(error({.codec = "intsum"}), "needs an exchange of all ranks"));
    EXPECT_TRUE(says(error({.step_size = 1.5}), "at most 1"));
    EXPECT_TRUE(says(error({}, 3), "the transport 2"));
    Gossip gossip(transport, Topology::ring(2));
    gossip.add("w", values);
    gossip.mix();
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { gossip.add("v", values); }),
                     "before the first step"));
  });
}

TEST(LostEdges, ReportUnreachableRanks) {
  using Ranks = std::vector<int>;
  const Topology ring = Topology::ring(6);
  LostEdges lost(ring);
  EXPECT_EQ(lost.unreachable_from(0), Ranks());
  lost.add(2, 1);
  EXPECT_EQ(lost.unreachable_from(2), Ranks());
  lost.add(2, 3);
  EXPECT_EQ(lost.unreachable_from(2), Ranks({0, 1, 3, 4, 5}));
  EXPECT_EQ(lost.unreachable_from(0), Ranks()) << "rank 2 alone is lost";
  std::vector<std::byte> message(lost.bytes());
  lost.write(message);
  LostEdges heard(ring);
  heard.add(5, 0);
  heard.read(message);
  EXPECT_EQ(heard.unreachable_from(5), Ranks({0, 1, 2}));
  heard.add(5, 4);
  EXPECT_EQ(heard.unreachable_from(0), Ranks({2, 3, 4, 5})) << "nobody lost ranks 3 and 4";
  EXPECT_EQ(heard.unreachable_from(4), Ranks({0, 1, 2, 5}));
  EXPECT_EQ(heard.bytes(), 32u);
  EXPECT_EQ(heard.max_bytes(), 48u);
  EXPECT_THROW(heard.read(std::span(message).first(12)), WireError);
  const Topology small = Topology::ring(3);
  LostEdges other(small);
  EXPECT_THROW(other.read(message), WireError);
}

/// The final result of one rank in a graph with a late rank.
struct LateOutcome {
  GossipStatistics seen;
  std::string error;
};

// The late rank waits until both neighbors have lost it, so the test does not depend on timing. A
// rank waiting for a waiting rank waits longer.
TEST(Gossips, LateRankAloneIsLostAndNotified) {
  constexpr int kRanks = 6, kLate = 2;
  std::vector<Values> all = gradients(kRanks, kMixed);
  std::vector<LateOutcome> ends(kRanks);
  auto transports = make_inprocess_transports(kRanks);
  std::latch has_lost(2), done(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = std::move(transports[static_cast<std::size_t>(rank)]);
      auto& [seen, error] = ends[static_cast<std::size_t>(rank)];
      Gossip gossip(*transport, Topology::ring(kRanks), {.timeout = std::chrono::seconds(2)});
      gossip.add("w", all[static_cast<std::size_t>(rank)]);
      for (int step = 0; step < 200; ++step) {
        if (rank == kLate && step == 2) has_lost.wait();
        const std::size_t before = seen.lost.size();
        try {
          gossip.mix();
        } catch (const PeerLostError& split) {
          error += split.what();
        }
        seen = gossip.statistics();
        if (seen.lost.size() > before && seen.lost.back() == kLate) has_lost.count_down();
      }
      done.arrive_and_wait();
    });
  threads.clear();
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto& [seen, error] = ends[static_cast<std::size_t>(rank)];
    if (rank == kLate) continue;
    const bool is_neighbour = std::abs(rank - kLate) == 1;
    EXPECT_EQ(seen.lost, is_neighbour ? std::vector<int>{kLate} : std::vector<int>{}) << rank;
    EXPECT_EQ(seen.cut_off, std::vector<int>()) << rank;
    EXPECT_EQ(error, "") << rank;
    EXPECT_EQ(seen.steps, 200u);
  }
  const auto& [seen, error] = ends[kLate];
  EXPECT_EQ(seen.lost.size(), 2u);
  EXPECT_EQ(seen.cut_off, std::vector<int>({0, 1, 3, 4, 5}));
  EXPECT_EQ(error,
            "gossip: no path connects rank 2 to ranks 0 1 3 4 5 any more; later calls mix without "
            "these ranks");
  EXPECT_EQ(seen.steps, 200u);
  all.erase(all.begin() + kLate);
  EXPECT_LT(Consensus(all).distance, 1e-2);
}

TEST(Gossips, RankWithoutNeighborsMayContinue) {
  auto transports = make_inprocess_transports(2);
  std::jthread leaves([&] {
    const auto transport = std::move(transports[1]);
    Values values(kMixed);
    Gossip gossip(*transport, Topology::ring(2));
    gossip.add("w", values);
    gossip.mix();
  });
  const auto transport = std::move(transports[0]);
  Values values(kMixed);
  Gossip gossip(*transport, Topology::ring(2), {.on_split = OnSplit::kContinue});
  gossip.add("w", values);
  for (int step = 0; step < 3; ++step) gossip.mix();
  EXPECT_EQ(gossip.statistics().cut_off, std::vector<int>{1});
}

// A ring of five becomes a chain of four, and these four ranks converge.
TEST(Gossips, LostNeighborIsExcludedFromMixing) {
  constexpr int kRanks = 5, kGone = 2;
  std::vector<Values> all = gradients(kRanks, kMixed);
  auto transports = make_inprocess_transports(kRanks);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank)
    threads.emplace_back([&, rank] {
      const auto transport = std::move(transports[static_cast<std::size_t>(rank)]);
      Gossip gossip(*transport, Topology::ring(kRanks), {.codec = "int8"});
      gossip.add("w", all[static_cast<std::size_t>(rank)]);
      for (int step = 0; step < 200; ++step) {
        if (rank == kGone && step == 7) return;
        gossip.mix();
      }
      const bool is_neighbour = std::abs(rank - kGone) == 1;
      EXPECT_EQ(gossip.statistics().lost,
                is_neighbour ? std::vector<int>{kGone} : std::vector<int>{});
    });
  threads.clear();
  all.erase(all.begin() + kGone);
  const Consensus left(all);
  EXPECT_LT(left.distance, 1e-2);
  double size = 0;
  for (const double one : left.mean) size += one * one;
  EXPECT_GT(size, 0.5 * kMixed / kRanks) << "weights are not pulled towards zero";
}

}  // namespace
}  // namespace tersor::testing
