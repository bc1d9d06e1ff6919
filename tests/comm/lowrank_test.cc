// lowrank through the reducer. Matrices use lowrank, other parameters bf16. Its memory is equal on
// all ranks and persists over steps, schedules and checkpoints.
#include "comm/reducer/state.h"
#include "tests/comm/training.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tersor::testing {
namespace {

ReducerState::Parameter saved(Training& run) {
  return read_state(run.reducer.save_state()).parameters[0];
}

/// A matrix of 100 rows and 200 columns: a sum of outer products, each half as large as the
/// previous product.
Values decaying() {
  Values sum(kCount);
  for (int j = 0; j < 12; ++j) {
    const Values left = gaussian(100, static_cast<std::uint64_t>(j)),
                 right = gaussian(200, static_cast<std::uint64_t>(100 + j));
    for (std::size_t i = 0; i < kCount; ++i)
      sum[i] += std::ldexp(left[i / 200] * right[i % 200], -j / 2);
  }
  return sum;
}

/// The relative squared error of a mean step with equal gradients on all ranks.
double left_out(Training& run) {
  const Values wanted = decaying();
  run.gradient = wanted;
  run.reducer.ready("w");
  run.reducer.wait();
  return squared_error(run.gradient, {wanted.begin(), wanted.end()});
}

TEST(LowrankReducer, LosesNothingWithOrWithoutHierarchy) {
  expect_loses_nothing(4, {.codec = "lowrank:rank=16+ef"});
  expect_loses_nothing(4, {.codec = "lowrank:rank=16+ef",
                           .algorithm = Algorithm::kHierarchical,
                           .hosts = {0, 0, 1, 1}});
}

TEST(LowrankReducer, RanksGetIdenticalBitsAndCodecMemory) {
  for (const bool hierarchical : {false, true})
    for (const std::string codec : {"lowrank+ef", "lowrank:rank=2,values=bf16"}) {
      std::vector<Values> outputs(4);
      std::vector<ReducerState::Parameter> states(4);
      run_ranks(4, {}, [&](Transport& transport) {
        ReducerOptions options{.codec = codec};
        if (hierarchical) {
          options.algorithm = Algorithm::kHierarchical;
          options.hosts = {0, 0, 1, 1};
        }
        Training run(transport, options);
        for (int step = 0; step < 3; ++step) run.step(step);
        const auto rank = static_cast<std::size_t>(transport.rank());
        outputs[rank] = run.gradient;
        states[rank] = saved(run);
      });
      const std::vector<float> zeros(states[0].memory.size());
      ASSERT_EQ(zeros.size(), codec == "lowrank+ef" ? 800u : 400u);
      std::vector<std::vector<float>> memories;  // of the encoding ranks
      for (const auto& state : states)
        if (state.memory != zeros) memories.push_back(state.memory);
      EXPECT_EQ(memories.size(), hierarchical ? 2u : 4u);
      for (const auto& memory : memories) EXPECT_EQ(memory, memories[0]);
      for (const Values& output : outputs) EXPECT_EQ(output, outputs[0]);
    }
}

TEST(LowrankReducer, MatricesUseLowrankAndOthersBf16) {
  run_ranks(3, {}, [](Transport& transport) {
    const std::vector<std::pair<std::size_t, std::size_t>> shapes = {
        {100, 200}, {64, 64}, {1, 20000}, {9, 600}, {300, 40}};
    std::vector<Values> layers;
    for (const auto& [rows, columns] : shapes) layers.emplace_back(rows * columns);
    GradientReducer reducer(transport, {.codec = "lowrank:rank=8"});
    for (std::size_t i = 0; i < layers.size(); ++i)
      reducer.add(std::to_string(i), layers[i], shapes[i].first, shapes[i].second);
    for (int step = 0; step < 2; ++step) {
      for (std::size_t i = 0; i < layers.size(); ++i) {
        layers[i] = gaussian(layers[i].size(), i);
        reducer.ready(std::to_string(i), layers[i]);
      }
      reducer.wait();
    }
    const auto found = reducer.parameter_statistics();
    EXPECT_EQ(found[0].codec, "lowrank:rank=8");
    EXPECT_EQ(found[1].codec, "lowrank:rank=8");
    EXPECT_EQ(found[2].codec, "bf16");
    EXPECT_EQ(found[3].codec, "bf16");
    EXPECT_TRUE(says(found[3].reason, "but the shape does not fit lowrank:rank=8"))
        << found[3].reason;
    EXPECT_EQ(found[4].codec, "lowrank:rank=8");
    const Values wanted = gaussian(layers[3].size(), 3);
    for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(layers[3][i], wanted[i], 0.02);
  });
}

TEST(LowrankReducer, RuleFallsBackToBf16ForVectors) {
  run_ranks(2, {}, [](Transport& transport) {
    Values vector(20000), matrix(20000);
    GradientReducer reducer(transport, {.rules = {{"*", "lowrank+ef"}}});
    reducer.add("vector", vector);
    reducer.add("matrix", matrix, 100, 200);
    reducer.ready("vector");
    reducer.ready("matrix");
    reducer.wait();
    EXPECT_EQ(reducer.parameter_statistics()[0].codec, "bf16");
    EXPECT_EQ(reducer.parameter_statistics()[1].codec, "lowrank+ef");
  });
}

TEST(LowrankReducer, ThePortableStateKeepsTheWarmStart) {
  std::vector<std::byte> state;
  std::vector<float> memory;
  double cold = 0, warm = 0;
  run_ranks(4, {}, [&](Transport& transport) {
    Training run(transport, {.codec = "lowrank"});
    const double first = left_out(run);
    for (int step = 0; step < 8; ++step) left_out(run);
    const auto portable = run.reducer.save_portable_state();
    const auto own = saved(run).memory;
    const double last = left_out(run);
    if (transport.rank() != 0) return;
    cold = first;
    warm = last;
    state = portable;
    memory = own;
  });
  ASSERT_LT(warm, 0.8 * cold);
  EXPECT_EQ(read_state(state).parameters[0].memory, memory);
  for (const bool hierarchical : {false, true})
    run_ranks(hierarchical ? 4 : 3, {}, [&](Transport& transport) {
      ReducerOptions options{.codec = "lowrank"};
      if (hierarchical) {
        options.algorithm = Algorithm::kHierarchical;
        options.hosts = {0, 0, 1, 1};
      }
      Training run(transport, options);
      run.reducer.load_state(state);
      EXPECT_EQ(saved(run).memory, memory);
      EXPECT_NEAR(left_out(run), warm, 1e-4 * warm);
      const auto again = read_state(run.reducer.save_portable_state()).parameters[0].memory;
      if (!hierarchical) EXPECT_EQ(again, saved(run).memory);
      EXPECT_NE(again, std::vector<float>(again.size()));
    });
}

TEST(LowrankReducer, ScheduledRankChangeRestartsCold) {
  run_ranks(3, {}, [](Transport& transport) {
    Training run(transport,
                 {.rules = {{"*", "int8"}, {"*", "lowrank", 2}, {"*", "lowrank:rank=2", 4}}});
    EXPECT_LT(left_out(run), 1e-3);
    left_out(run);
    Training cold(transport, {.codec = "lowrank"}), narrow(transport, {.codec = "lowrank:rank=2"});
    EXPECT_EQ(left_out(run), left_out(cold));
    EXPECT_EQ(left_out(run), left_out(cold));
    EXPECT_EQ(left_out(run), left_out(narrow));
    EXPECT_EQ(left_out(run), left_out(narrow));
  });
}

TEST(LowrankReducer, StateWithDifferentShapeIsRejected) {
  run_ranks(1, {}, [](Transport& transport) {
    Training run(transport, {.codec = "lowrank"});
    const auto state = run.reducer.save_state();
    Values gradient(kCount);
    GradientReducer other(transport, {.codec = "lowrank"});
    other.add("w", gradient, 200, 100);
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { other.load_state(state); }),
                     "codec's memory of \"w\" has 800"));
  });
}

TEST(LowrankReducer, MissingShapeAndShardsAreRejectedBeforeSending) {
  run_ranks(2, {}, [](Transport& transport) {
    Values whole(20000), shard(10000);
    const CollectiveOptions options{.codec = "lowrank"};
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { allreduce(transport, whole, options); }),
                     "reducer"));
    const char* scattered = "supports only allreduce";
    EXPECT_TRUE(says(
        error_of<InvalidArgumentError>([&] { reduce_scatter(transport, whole, shard, options); }),
        scattered));
    EXPECT_TRUE(
        says(error_of<InvalidArgumentError>([&] { allgather(transport, shard, whole, options); }),
             scattered));
    GradientReducer reducer(transport, {.codec = "lowrank"});
    const GradientShape shape{
        .count = 20000, .rows = 100, .columns = 200, .collective = Collective::kReduceScatter};
    EXPECT_TRUE(says(error_of<InvalidArgumentError>([&] { reducer.add("w", shape); }), scattered));
    EXPECT_EQ(transport.counters().sent_messages, 0u);
  });
}

}  // namespace
}  // namespace tersor::testing
