// The GradientReducer with the hierarchical algorithm: the same bits on all ranks, no lost values,
// and checkpoints.
#include "tests/comm/training.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

namespace tersor::testing {
namespace {

ReducerOptions hierarchical(const Hosts& hosts, const std::string& codec = "int8+ef") {
  ReducerOptions options;
  options.codec = codec;
  options.algorithm = Algorithm::kHierarchical;
  options.hosts = hosts;
  return options;
}

struct HostsLayer {
  std::string name;
  std::size_t rows, columns;
};

const HostsLayer kHostsLayers[] = {{"large", 300, 400}, {"bias", 1, 400}, {"small", 20, 30},
                                   {"wide", 64, 512},   {"scale", 1, 1},  {"empty", 0, 0}};

/// Gradients of all layers on this rank after `steps` steps.
std::vector<Values> train(Transport& transport, const ReducerOptions& options, int steps) {
  std::vector<Values> gradients;
  GradientReducer reducer(transport, options);
  for (const HostsLayer& layer : kHostsLayers) gradients.emplace_back(layer.rows * layer.columns);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    reducer.add(kHostsLayers[i].name, gradients[i], kHostsLayers[i].rows, kHostsLayers[i].columns);
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = gradients.size(); i-- > 0;) {
      const auto seed = static_cast<std::uint64_t>((step * 100 + transport.rank()) * 10) + i;
      const Values fresh = gaussian(gradients[i].size(), seed);
      std::copy(fresh.begin(), fresh.end(), gradients[i].begin());
      reducer.ready(kHostsLayers[i].name);
    }
    reducer.wait();
  }
  return gradients;
}

std::vector<std::vector<Values>> train_all(const Hosts& hosts, const ReducerOptions& options) {
  std::vector<std::vector<Values>> results(hosts.size());
  run_ranks(static_cast<int>(hosts.size()), {}, [&](Transport& transport) {
    results[static_cast<std::size_t>(transport.rank())] = train(transport, options, 4);
  });
  return results;
}

class HierarchicalReducer : public ::testing::TestWithParam<Hosts> {};

INSTANTIATE_TEST_SUITE_P(Hosts, HierarchicalReducer,
                         ::testing::Values(Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 0, 1},
                                           Hosts{0, 1, 1, 0}, Hosts{0, 0, 0, 1, 1, 2},
                                           Hosts{0, 0, 1, 1, 2, 2, 3}));

TEST_P(HierarchicalReducer, AllRanksGetIdenticalBitsWithEitherProgressMode) {
  for (const std::string codec : {"none", "int8+ef", "topk:density=0.1+ef"}) {
    ReducerOptions options = hierarchical(GetParam(), codec);
    options.chunk_count = 8192;
    const auto by_thread = train_all(GetParam(), options);
    for (const auto& gradients : by_thread) ASSERT_EQ(gradients, by_thread.front()) << codec;
    options.progress = ProgressBy::kCaller;
    EXPECT_EQ(train_all(GetParam(), options), by_thread) << codec;
  }
}

TEST_P(HierarchicalReducer, LosesNothing) {
  expect_loses_nothing(ranks_of(GetParam()), hierarchical(GetParam()));
}

// The owner of a shard forwards its host's sum even without a gradient of its own.
TEST(HierarchicalReducers, MissingParameterAddsZeroAndReceivesSum) {
  constexpr std::size_t kValues = 8192;
  const Hosts hosts{0, 0, 1, 1};
  run_ranks(4, {}, [&](Transport& transport) {
    ReducerOptions options = hierarchical(hosts, "none");
    options.reduction = Reduction::kSum;
    options.missing = MissingGradient::kInactive;
    Values gradient(kValues), other(kValues, 1.0f);
    GradientReducer reducer(transport, options);
    reducer.add("w", gradient, 64, 128);
    reducer.add("v", other, 64, 128);
    for (int missing = 0; missing < 4; ++missing) {
      std::fill(gradient.begin(), gradient.end(), 1.0f);
      if (transport.rank() != missing) reducer.ready("w");
      reducer.ready("v");
      reducer.wait();
      ASSERT_EQ(gradient, Values(kValues, 3.0f)) << missing;
    }
  });
}

TEST_P(HierarchicalReducer, CheckpointContinuesBitForBit) {
  expect_goes_on(ranks_of(GetParam()), hierarchical(GetParam()));
}

/// The residuals of a portable state, drained in a run with `options`.
std::vector<double> drained(const std::vector<std::byte>& state, int ranks,
                            const ReducerOptions& options) {
  std::vector<double> found;
  run_ranks(ranks, {}, [&](Transport& transport) {
    Training run(transport, options);
    run.reducer.load_state(state);
    const auto rest = drain(run);
    if (transport.rank() == 0) found = rest;
  });
  return found;
}

double squared_distance(const std::vector<double>& one, const std::vector<double>& other) {
  double sum = 0;
  for (std::size_t i = 0; i < one.size(); ++i) sum += (one[i] - other[i]) * (one[i] - other[i]);
  return sum;
}

TEST(HierarchicalCheckpoint, RankAndHostChangePreservesResiduals) {
  for (const Reduction reduction : {Reduction::kSum, Reduction::kMean}) {
    const auto options = [&](const Hosts& hosts) {
      ReducerOptions wanted = hierarchical(hosts);
      wanted.reduction = reduction;
      return wanted;
    };
    std::vector<std::byte> state;
    std::vector<double> wanted;
    run_ranks(5, {}, [&](Transport& transport) {
      Training run(transport, options({0, 0, 1, 1, 1}));
      for (int step = 0; step < 3; ++step) run.step(step);
      const auto portable = run.reducer.save_portable_state();
      const auto rest = drain(run);
      if (transport.rank() == 0) {
        state = portable;
        wanted = rest;
      }
    });
    const double energy = squared_distance(wanted, std::vector<double>(kCount, 0.0));
    ASSERT_GT(energy, 0.0);
    ReducerOptions flat{.codec = "int8+ef", .reduction = reduction};
    EXPECT_LE(squared_distance(drained(state, 3, flat), wanted), 1e-6 * energy);
    const Hosts others{0, 1, 2, 0, 1, 2, 0};
    EXPECT_LE(squared_distance(drained(state, 7, options(others)), wanted), 1e-6 * energy);
  }
}

TEST(HierarchicalCheckpoint, StateWithEmptyParameterLoads) {
  run_ranks(4, {}, [](Transport& transport) {
    const ReducerOptions options = hierarchical({0, 0, 1, 1});
    Values empty, gradient(9000, 1.0f);
    GradientReducer saved(transport, options), loaded(transport, options);
    for (GradientReducer* reducer : {&saved, &loaded}) {
      reducer->add("empty", empty, 0, 128);
      reducer->add("w", gradient, 90, 100);
    }
    for (const char* name : {"empty", "w"}) saved.ready(name);
    saved.wait();
    EXPECT_NO_THROW(loaded.load_state(saved.save_portable_state()));
  });
}

// An exact state belongs to a group rank on a host. Another group rank may own as many, but
// different values.
TEST(HierarchicalCheckpoint, StateOfAnotherLocalRankIsRejected) {
  std::vector<std::vector<std::byte>> states(4);
  run_ranks(4, {}, [&](Transport& transport) {
    Training run(transport, hierarchical({0, 0, 1, 1}));
    run.step(0);
    states[static_cast<std::size_t>(transport.rank())] = run.reducer.save_state();
  });
  run_ranks(4, {}, [&](Transport& transport) {
    Training run(transport, hierarchical({0, 1, 0, 1}));
    const auto& state = states[static_cast<std::size_t>(transport.rank())];
    if (transport.rank() == 0 || transport.rank() == 3) return;
    EXPECT_THROW(run.reducer.load_state(state), InvalidArgumentError);
  });
}

TEST(HierarchicalReducerOptions, RejectMeasureErrorAndWrongHostCount) {
  run_ranks(4, {}, [](Transport& transport) {
    ReducerOptions options = hierarchical({0, 0, 1, 1});
    options.measure_error = MeasureError::kOn;
    EXPECT_THROW(GradientReducer(transport, options), InvalidArgumentError);
    EXPECT_THROW(GradientReducer(transport, hierarchical({0, 0, 1})), InvalidArgumentError);
  });
}

TEST(HierarchicalReducerOptions, HostMismatchFailsOnAllRanks) {
  std::atomic<int> failed{0}, running{4};
  run_ranks(4, {}, [&](Transport& transport) {
    ReducerOptions options = hierarchical({0, 0, 1, 1});
    if (transport.rank() == 2) options.hosts = {0, 1, 0, 1};
    options.timeout = std::chrono::seconds(60);
    std::optional<Training> run;  // construction may already detect the mismatch
    try {
      run.emplace(transport, options);
      run->step(0);
    } catch (const TransportError& error) {
      ++failed;
      EXPECT_EQ(std::string(error.what()).find("within"), std::string::npos) << error.what();
    }
    --running;
    while (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_EQ(failed, 4);
}

}  // namespace
}  // namespace tersor::testing
