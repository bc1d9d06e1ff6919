// The reducer with device gradients: the same bits as on the host, including residuals and
// checkpoints.
#include "comm/collectives/parts.h"
#include "tests/device_comm/fabric.h"
#include "tests/device_comm/model.h"

#include <cmath>
#include <cstring>
#include <memory>

namespace tersor::test {
namespace {

/// The results of a run on one rank: the bytes of the gradients of all steps, and a state.
struct Outcome {
  Values values;
  std::vector<std::byte> state;
};

using Training = std::function<Outcome(Transport&, const Location&)>;

std::vector<Outcome> on_hosts(int ranks, const Training& run) {
  std::vector<Outcome> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    all[static_cast<std::size_t>(transport.rank())] = run(transport, {});
  });
  return all;
}

Outcome train(Transport& transport, const Location& location, ReducerOptions options) {
  Model model(transport, location, options);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) append(outcome.values, model.step(step));
  outcome.state = model.reducer().save_state();
  return outcome;
}

class ReducerOnDevice : public OnDeviceFabric {
 protected:
  std::vector<Outcome> on_devices(int ranks, const Training& run) const {
    std::vector<Outcome> all(static_cast<std::size_t>(ranks));
    OnDeviceFabric::run(ranks, [&](Transport& transport, StreamView stream) {
      all[static_cast<std::size_t>(transport.rank())] = run(transport, {Memory::kDevice, stream});
    });
    return all;
  }

  void expect_as_on_hosts(int ranks, const Training& run) const {
    const auto found = on_devices(ranks, run), wanted = on_hosts(ranks, run);
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      ASSERT_EQ(found[rank].values, wanted[rank].values) << "rank " << rank;
      ASSERT_TRUE(found[rank].state == wanted[rank].state) << "rank " << rank;
    }
  }
};

TEST_P(ReducerOnDevice, TrainingMatchesHost) {
  for (const int ranks : {2, 3})
    expect_as_on_hosts(ranks, [](Transport& transport, const Location& location) {
      return train(transport, location, options_of(location));
    });
}

TEST_P(ReducerOnDevice, ParametersMayBeAddedBetweenSteps) {
  expect_as_on_hosts(2, [](Transport& transport, const Location& location) {
    Model model(transport, location, options_of(location));
    Outcome outcome;
    for (int step = 0; step < 4; ++step) {
      if (step == 2) model.add({"fourth.weight", 64, 40}, location);
      append(outcome.values, model.step(step));
    }
    outcome.state = model.reducer().save_state();
    return outcome;
  });
}

TEST_P(ReducerOnDevice, HierarchicalTrainingMatchesHost) {
  expect_as_on_hosts(3, [](Transport& transport, const Location& location) {
    ReducerOptions options = options_of(location);
    options.algorithm = Algorithm::kHierarchical;
    options.hosts = {0, 0, 1};
    return train(transport, location, options);
  });
}

TEST_P(ReducerOnDevice, InactiveParametersMatchHost) {
  expect_as_on_hosts(2, [](Transport& transport, const Location& location) {
    ReducerOptions options = options_of(location);
    options.missing = MissingGradient::kInactive;
    Model model(transport, location, options);
    Outcome outcome;
    append(outcome.values, model.step(0));
    append(outcome.values, model.step(1, transport.rank() == 0 ? 0 : 2));
    append(outcome.values, model.step(2));
    outcome.state = model.reducer().save_state();
    return outcome;
  });
}

TEST_P(ReducerOnDevice, DiscardedStepMatchesHost) {
  expect_as_on_hosts(2, [](Transport& transport, const Location& location) {
    ReducerOptions options = options_of(location);
    options.transactional = Transactional::kOn;
    Model model(transport, location, options);
    Outcome outcome;
    append(outcome.values, model.step(0));
    model.step(1);
    model.reducer().discard_step();
    model.reducer().scale_residuals(0.5f);
    append(outcome.values, model.step(1));
    outcome.state = model.reducer().save_state();
    return outcome;
  });
}

TEST_P(ReducerOnDevice, ContinuesFromSavedState) {
  expect_as_on_hosts(2, [](Transport& transport, const Location& location) {
    std::vector<std::byte> state;
    {
      Model first(transport, location, options_of(location));
      first.step(0);
      state = first.reducer().save_state();
    }
    Model second(transport, location, options_of(location));
    second.reducer().load_state(state);
    return Outcome{second.step(1), second.reducer().save_state()};
  });
}

// The gradient of a rank without samples must not be read.
TEST_P(ReducerOnDevice, WeightedStepsMatchHost) {
  expect_as_on_hosts(3, [](Transport& transport, const Location& location) {
    ReducerOptions options = options_of(location);
    options.weighted = Weighted::kOn;
    Model model(transport, location, options);
    Outcome outcome;
    for (int step = 0; step < 4; ++step) {
      model.reducer().weigh((transport.rank() + step) % 3);
      append(outcome.values, model.step(step));
    }
    outcome.state = model.reducer().save_state();
    return outcome;
  });
}

// Continues from a state, so residuals and the codec's memory are saved and loaded.
TEST_P(ReducerOnDevice, RestoredLowRankStateMatchesHost) {
  if (!GetParam().own_sums) GTEST_SKIP() << "bare values are added by the library below";
  for (const bool hierarchical : {false, true})
    expect_as_on_hosts(3, [hierarchical](Transport& transport, const Location& location) {
      ReducerOptions options = options_of(location);
      options.rules = {
          {"*.bias", "bf16"}, {"second.*", "lowrank:values=bf16+ef"}, {"*", "lowrank:rank=2+ef"}};
      if (hierarchical) {
        options.algorithm = Algorithm::kHierarchical;
        options.hosts = {0, 0, 1};
      }
      const Outcome first = train(transport, location, options);
      Model second(transport, location, options);
      second.reducer().load_state(first.state);
      return Outcome{second.step(7), second.reducer().save_state()};
    });
}

/// Steps with sharded parameters. One parameter has no gradient in a step.
Outcome scatter(Transport& transport, const Location& location, const ReducerOptions& options) {
  GradientReducer reducer(transport, options);
  const auto ranks = static_cast<std::size_t>(transport.ranks());
  std::vector<std::unique_ptr<PlacedValues>> gradients, shards;
  for (const Shape& shape : kShapes) {
    const std::size_t shard = ceil_div(shape.count(), ranks) + 3;  // padding
    gradients.push_back(std::make_unique<PlacedValues>(ranks * shard, Dtype::kF32, location));
    shards.push_back(std::make_unique<PlacedValues>(shard, Dtype::kF32, location));
    reducer.add(shape.name, {.count = shape.count(),
                             .memory = location.memory,
                             .rows = shape.rows,
                             .columns = shape.columns,
                             .collective = Collective::kReduceScatter,
                             .shard_count = shard});
  }
  Outcome outcome;
  for (int step = 0; step < 3; ++step) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i]->write(
          testing::gaussian(gradients[i]->span().count(),
                            static_cast<std::uint64_t>(step * 100 + transport.rank() * 10) + i));
      const bool left_out = step == 1 && i == 0 && transport.rank() == 0;
      reducer.ready(kShapes[i].name, gradients[i]->span(), shards[i]->span(),
                    left_out ? Contribution::kNone : Contribution::kGradient);
    }
    reducer.wait();
    for (const auto& shard : shards) append(outcome.values, shard->read());
  }
  outcome.state = reducer.save_state();
  return outcome;
}

TEST_P(ReducerOnDevice, ReduceScatterMatchesHost) {
  for (const int ranks : {1, 2, 3})
    for (const SendingOrder order : {SendingOrder::kLearned, SendingOrder::kReadyOrder})
      expect_as_on_hosts(ranks, [order](Transport& transport, const Location& location) {
        ReducerOptions options = options_of(location);
        options.order = order;
        return scatter(transport, location, options);
      });
}

TEST_P(ReducerOnDevice, HierarchicalReduceScatterMatchesHost) {
  expect_as_on_hosts(4, [](Transport& transport, const Location& location) {
    ReducerOptions options = options_of(location);
    options.algorithm = Algorithm::kHierarchical;
    options.hosts = {0, 1, 1, 0};
    return scatter(transport, location, options);
  });
}

// Native sums may come from the library below.
TEST_P(ReducerOnDevice, ContinuesFromPortableState) {
  const auto run = [](Transport& transport, const Location& location) {
    Model first(transport, location, options_of(location));
    first.step(0);
    const std::vector<std::byte> state = first.reducer().save_portable_state();
    Model second(transport, location, options_of(location));
    second.reducer().load_state(state);
    return Outcome{second.step(1), {}};
  };
  const auto found = on_devices(2, run), wanted = on_hosts(2, run);
  for (std::size_t i = 0; i < wanted[0].values.size(); ++i)
    ASSERT_NEAR(found[0].values[i], wanted[0].values[i], 0.1) << i;
  EXPECT_EQ(found[0].values, found[1].values);
}

TEST_P(ReducerOnDevice, HandlesAndStatistics) {
  run(2, [](Transport& transport, StreamView stream) {
    ReducerOptions options = options_of({Memory::kDevice, stream});
    options.rules = {};
    options.codec = "int8+ef";
    options.measure_error = MeasureError::kOn;
    PlacedValues gradient(9000, Dtype::kF32, {Memory::kDevice, stream});
    GradientReducer reducer(transport, options);
    reducer.add("w", gradient.span(), 90, 100);
    for (int step = 0; step < 2; ++step) {
      gradient.write(testing::gaussian(9000, static_cast<std::uint64_t>(step)));
      const ReducerHandle handle = reducer.ready("w");
      reducer.flush();
      handle.wait();
      EXPECT_TRUE(handle.test());
      reducer.wait();
    }
    const ReducerStatistics all = reducer.statistics();
    EXPECT_EQ(all.steps, 2u);
    EXPECT_GT(all.sent_bytes, 2u * 9000u);
    EXPECT_LT(all.sent_bytes, 2u * 2u * 9000u);
    EXPECT_GT(reducer.residual_norms()[0], 0.0);
    EXPECT_GT(all.relative_error, 0.0);
  });
}

// f32 and bf16 residuals, next to parameters without residuals.
TEST_P(ReducerOnDevice, ResidualNormsMatchHost) {
  for (const Dtype residuals : {Dtype::kF32, Dtype::kBf16}) {
    const auto norms = [&](Transport& transport, const Location& location) {
      ReducerOptions options = options_of(location);
      options.residual_dtype = residuals;
      Model model(transport, location, options);
      model.step(0);
      const std::vector<double> found = model.reducer().residual_norms();
      return Outcome{Values(found.begin(), found.end()), {}};
    };
    const Values found = on_devices(2, norms)[0].values, wanted = on_hosts(2, norms)[0].values;
    EXPECT_GT(*std::ranges::max_element(wanted), 0.0f);
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_FLOAT_EQ(found[i], wanted[i]) << i;
  }
}

TEST_P(ReducerOnDevice, OverflowCountsMatchHost) {
  const auto overflows = [](Transport& transport, const Location& location) {
    GradientReducer reducer(transport, {.codec = "f16", .stream = location.stream});
    PlacedValues gradient(6400, Dtype::kF32, location);
    reducer.add("w", gradient.span(), 64, 100);
    Outcome outcome;
    for (int step = 0; step < 4; ++step) {
      gradient.write(Values(6400, step % 2 == 0 ? 1e6f : 1.0f));
      reducer.ready("w");
      reducer.wait();
      for (const auto& told : {reducer.statistics(), reducer.statistics_so_far()})
        outcome.values.push_back(static_cast<float>(told.overflows));
      if (step == 1) reducer.reset_statistics();
    }
    return outcome;
  };
  const Values wanted = on_hosts(2, overflows)[0].values;
  EXPECT_EQ(on_devices(2, overflows)[0].values, wanted);
  EXPECT_GE(wanted.back(), 6400.0f);
}

// Buffers and messages are recreated between steps. Residuals of owners move to senders.
TEST_P(ReducerOnDevice, AutoLearningSettlesEquallyOnAllRanks) {
  std::vector<Values> all(2);
  run(2, [&](Transport& transport, StreamView stream) {
    const Location location{Memory::kDevice, stream};
    ReducerOptions options = options_of(location);
    options.rules = {{"*.bias", "bf16"}, {"*", "auto"}};
    options.auto_codecs = {"int4+ef"};
    options.auto_link = LinkFigures{};
    options.memory = Memory::kDevice;
    Model model(transport, location, options);
    Values& values = all[static_cast<std::size_t>(transport.rank())];
    for (int step = 0; step < 60 && !model.reducer().settled(); ++step) {
      const Values results = model.step(step);
      values.insert(values.end(), results.begin(), results.end());
    }
    EXPECT_TRUE(model.reducer().settled()) << model.reducer().explain();
    for (const char* words : {"none+ef: ", "bf16+ef: ", "int4+ef: ", "settled after"})
      EXPECT_NE(model.reducer().explain().find(words), std::string::npos)
          << model.reducer().explain();
  });
  EXPECT_EQ(all[0], all[1]);
}

// Ranks differ in an option outside of the signature. No rank gets a sum, and the next step raises
// the error.
TEST_P(ReducerOnDevice, SubsequentStepReportsFrameMismatch) {
  run(2, [](Transport& transport, StreamView stream) {
    const Location location{Memory::kDevice, stream};
    ReducerOptions options = options_of(location);
    options.checksum = transport.rank() == 0 ? Checksum::kOn : Checksum::kOff;
    Model model(transport, location, options);
    EXPECT_THROW(
        {
          EXPECT_TRUE(std::isnan(model.step(0).back()));  // otherwise the peer is a step ahead
          model.step(1);
          model.step(2);
        },
        Error);
    EXPECT_THROW(model.step(3), Error);
  });
}

TEST_P(ReducerOnDevice, RejectsMixedMemory) {
  run(2, [](Transport& transport, StreamView stream) {
    PlacedValues device(100, Dtype::kF32, {Memory::kDevice, stream}), host(100, Dtype::kF32, {});
    GradientReducer reducer(transport, {.stream = stream});
    reducer.add("a", device.span());
    EXPECT_THROW(reducer.add("b", host.span()), InvalidArgumentError);
    EXPECT_THROW(reducer.ready("a", host.span()), InvalidArgumentError);
  });
}

INSTANTIATE_TEST_SUITE_P(Fabrics, ReducerOnDevice, ::testing::Values(fabrics().front()),
                         fabric_name);

}  // namespace
}  // namespace tersor::test
