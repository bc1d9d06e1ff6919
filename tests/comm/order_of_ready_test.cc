// The GradientReducer with parameters made ready in the same order on all ranks. No order is
// learned, and a step may use a subset of the parameters.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace tersor::testing {
namespace {

constexpr std::size_t kReadyCount = 9000;
const std::vector<std::string> kReadyNames = {"a", "b", "c"};

/// A rank's reducer of equal parameters. The last parameter is all-reduced.
class ReadyModel {
 public:
  ReadyModel(Transport& transport, const ReducerOptions& options)
      : rank_(transport.rank()),
        gradients_(kReadyNames.size()),
        shards_(kReadyNames.size(),
                Values(kReadyCount / static_cast<std::size_t>(transport.ranks()))),
        reducer(transport, options) {
    for (const std::string& name : kReadyNames)
      reducer.add(
          name, {.count = kReadyCount,
                 .rows = 90,
                 .columns = 100,
                 .collective = name == "c" ? Collective::kAllreduce : Collective::kReduceScatter});
  }

  std::vector<ReducerHandle> ready(const std::vector<std::size_t>& parameters, int step) {
    std::vector<ReadyGradient> together;
    for (const std::size_t i : parameters) {
      gradients_[i] =
          gaussian(kReadyCount, static_cast<std::uint64_t>(step * 100 + rank_ * 10) + i);
      together.push_back({kReadyNames[i], gradients_[i]});
      if (kReadyNames[i] != "c") together.back().shard = shards_[i];
    }
    return reducer.ready(together);
  }

  /// The result of a parameter.
  const Values& result(std::size_t i) const {
    return kReadyNames[i] == "c" ? gradients_[i] : shards_[i];
  }

  Values step(const std::vector<std::size_t>& parameters, int index) {
    for (const std::size_t i : parameters) ready({i}, index);
    reducer.wait();
    Values all;
    for (const std::size_t i : parameters)
      all.insert(all.end(), result(i).begin(), result(i).end());
    return all;
  }

  double residual_norm(std::size_t i) const { return reducer.residual_norms()[i]; }

 private:
  int rank_;
  std::vector<Values> gradients_, shards_;

 public:
  GradientReducer reducer;
};

ReducerOptions ready_order(const std::string& codec) {
  return {.rules = {{"*", codec}}, .order = SendingOrder::kReadyOrder};
}

class OrderOfReady : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(OrderOfReady, MatchesLearnedOrderBitwise) {
  const auto& [codec, ranks] = GetParam();
  for (const ProgressBy progress : {ProgressBy::kThread, ProgressBy::kCaller})
    run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
      ReducerOptions options = ready_order(codec), learning = options;
      options.progress = progress;
      learning.order = SendingOrder::kLearned;
      ReadyModel model(transport, options), learned(transport, learning);
      for (int step = 0; step < 3; ++step)
        ASSERT_EQ(model.step({2, 0, 1}, step), learned.step({2, 0, 1}, step));
    });
}

TEST_P(OrderOfReady, HandlesCanBeAwaitedMidStep) {
  const auto& [codec, ranks] = GetParam();
  run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
    ReadyModel model(transport, ready_order(codec)), plain(transport, ready_order(codec));
    for (int step = 0; step < 2; ++step) {
      const Values wanted = plain.step({0, 1, 2}, step);
      Values found;
      for (std::size_t i = 0; i < kReadyNames.size(); ++i) {
        for (const ReducerHandle& handle : model.ready({i}, step)) {
          handle.wait();
          EXPECT_TRUE(handle.test());
        }
        found.insert(found.end(), model.result(i).begin(), model.result(i).end());
      }
      model.reducer.wait();
      EXPECT_EQ(found, wanted);
    }
  });
}

TEST_P(OrderOfReady, UnusedParameterKeepsItsResidual) {
  const auto& [codec, ranks] = GetParam();
  for (const Transactional transactions : {Transactional::kOff, Transactional::kOn})
    run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
      ReducerOptions options = ready_order(codec);
      options.transactional = transactions;
      ReadyModel model(transport, options);
      model.step({0, 1, 2}, 0);
      const double before = model.residual_norm(1);
      model.step({0, 2}, 1);
      EXPECT_EQ(model.residual_norm(1), before);
      model.step({1}, 2);
      EXPECT_EQ(model.residual_norm(1) != before, codec.ends_with("+ef") && ranks > 1);
      const auto statistics = model.reducer.parameter_statistics();
      EXPECT_EQ(statistics[0].steps, 2u);
      EXPECT_EQ(statistics[1].steps, 2u);
      EXPECT_EQ(statistics[1].gradient_bytes, 2u * 4u * kReadyCount);
      EXPECT_EQ(model.reducer.statistics().steps, 3u);
    });
}

TEST_P(OrderOfReady, DiscardedPartialStepDoesNotChangeState) {
  const auto& [codec, ranks] = GetParam();
  run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
    ReducerOptions options = ready_order(codec);
    options.transactional = Transactional::kOn;
    ReadyModel model(transport, options), plain(transport, options);
    for (ReadyModel* one : {&model, &plain}) {
      one->step({0, 1, 2}, 0);
      one->step({1}, 1);
    }
    model.step({0, 2}, 9);
    model.reducer.discard_step();
    EXPECT_EQ(model.step({0, 1, 2}, 2), plain.step({0, 1, 2}, 2));
  });
}

TEST_P(OrderOfReady, ContinuesFromSavedState) {
  const auto& [codec, ranks] = GetParam();
  run_ranks(ranks, {}, [&, &codec = codec](Transport& transport) {
    ReadyModel first(transport, ready_order(codec)), second(transport, ready_order(codec));
    first.step({0, 1}, 0);
    second.reducer.load_state(first.reducer.save_state());
    EXPECT_EQ(second.step({1, 2}, 1), first.step({1, 2}, 1));
    EXPECT_NO_THROW(second.reducer.relearn_order());
    EXPECT_EQ(second.step({2, 0}, 2), first.step({2, 0}, 2));
  });
}

INSTANTIATE_TEST_SUITE_P(Codecs, OrderOfReady,
                         ::testing::Combine(::testing::Values("none", "int8+ef",
                                                              "int4:rounding=stochastic+ef",
                                                              "topk:density=0.05+ef"),
                                            ::testing::Values(1, 2, 3)));

TEST(CallersThread, SendsInReady) {
  std::atomic<bool> there{false};
  run_ranks(2, {}, [&](Transport& transport) {
    GradientReducer reducer(
        transport,
        {.codec = "none", .order = SendingOrder::kReadyOrder, .progress = ProgressBy::kCaller});
    reducer.add("a", {.count = 100, .collective = Collective::kReduceScatter});
    Values gradient(100, 1.0f), shard(50);
    const ReducerHandle handle = reducer.ready("a", gradient, shard);
    if (transport.rank() == 1) {
      handle.wait();  // while rank 0 computes
      there = true;
    }
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (!there && Clock::now() < until) std::this_thread::yield();
    EXPECT_TRUE(there);
    reducer.wait();
    EXPECT_EQ(shard, Values(50, 1.0f));
  });
}

TEST(ReadyTogether, ShareAMessage) {
  run_ranks(2, {}, [](Transport& transport) {
    GradientReducer reducer(transport, {.codec = "bf16", .order = SendingOrder::kReadyOrder});
    for (const char* name : {"a", "b", "c"}) reducer.add(name, {.count = 100});
    std::vector<Values> values(3, Values(100, 2.0f));
    const std::vector<ReadyGradient> both = {{"c", values[2]}, {"a", values[0]}};
    for (int step = 0; step < 3; ++step) {
      reducer.ready(both);
      reducer.ready("b", values[1]);
      reducer.wait();
    }
    for (const Values& one : values) EXPECT_EQ(one, Values(100, 2.0f));
    EXPECT_NE(reducer.explain().find("3 parameters in 2 messages, in the order in which"),
              std::string::npos)
        << reducer.explain();
  });
}

// Layers are dropped at random, so each step uses another set of parameters.
TEST(ReadyTogether, ChangingSetsKeepMessageCountBounded) {
  constexpr std::size_t kParameters = 10, kCount = 600;
  run_ranks(2, {}, [](Transport& transport) {
    const ReducerOptions options{.codec = "int4+ef", .order = SendingOrder::kReadyOrder};
    GradientReducer together(transport, options), alone(transport, options);
    std::vector<Values> values(kParameters, Values(kCount)), others = values;
    std::vector<std::string> names;
    for (std::size_t i = 0; i < kParameters; ++i) {
      names.push_back(std::to_string(i));
      for (GradientReducer* reducer : {&together, &alone})
        reducer->add(names[i], {.count = kCount});
    }
    for (std::size_t step = 1; step < 400; ++step) {
      std::vector<ReadyGradient> set;
      for (std::size_t i = 0; i < kParameters; ++i) {
        if ((step * 5 >> i) % 2 == 0) continue;
        values[i] = others[i] = gaussian(kCount, 100 * step + i);
        set.push_back({names[i], values[i]});
        alone.ready(names[i], others[i]);
      }
      together.ready(set);
      together.wait();
      alone.wait();
      ASSERT_EQ(values, others) << "step " << step;
    }
    const std::string said = together.explain();
    const std::string before = std::to_string(kParameters) + " parameters in ";
    ASSERT_NE(said.find(before), std::string::npos) << said;
    EXPECT_LE(std::stoul(said.substr(said.find(before) + before.size())), 100u) << said;
  });
}

// Without a check, equal sizes would sum different parameters.
TEST(ReadyTogether, ParameterMismatchFailsOnAllRanks) {
  for (const std::string codec : {"none", "int8+ef"})
    run_ranks(2, {}, [&](Transport& transport) {
      const ReducerOptions options{
          .codec = codec, .order = SendingOrder::kReadyOrder, .timeout = std::chrono::seconds(30)};
      GradientReducer reducer(transport, options);
      for (const char* name : {"a", "b"}) reducer.add(name, {.count = 100});
      Values values(100, 1.0f);
      reducer.ready(transport.rank() == 0 ? "a" : "b", values);
      expect_error<TransportError>([&] { reducer.wait(); }, "other parameters or rows");
    });
}

TEST(ReadyTogether, RejectsDuplicateParameter) {
  for (const SendingOrder order : {SendingOrder::kLearned, SendingOrder::kReadyOrder})
    run_ranks(2, {}, [&](Transport& transport) {
      GradientReducer reducer(transport, {.codec = "none", .order = order});
      reducer.add("a", {.count = 100});
      Values values(100, 1.0f);
      const std::vector<ReadyGradient> twice = {{"a", values}, {"a", values}};
      EXPECT_THROW(reducer.ready(twice), InvalidArgumentError);
      reducer.ready("a", values);
      EXPECT_THROW(reducer.ready("a", values), InvalidArgumentError);
      reducer.wait();
      EXPECT_EQ(values, Values(100, 1.0f));
    });
}

TEST(ReadyTogether, RejectedCallLeavesOtherParametersUnchanged) {
  for (const SendingOrder order : {SendingOrder::kLearned, SendingOrder::kReadyOrder})
    run_ranks(2, {}, [&](Transport& transport) {
      GradientReducer reducer(transport, {.codec = "none", .order = order});
      for (const char* name : {"a", "b"}) reducer.add(name, {.count = 100});
      Values a(100, 1.0f), b(100, 2.0f), wrong(99);
      const std::vector<ReadyGradient> mistaken = {{"a", a, {}, Contribution::kNone}, {"b", wrong}};
      EXPECT_THROW(reducer.ready(mistaken), InvalidArgumentError);
      EXPECT_EQ(a, Values(100, 1.0f));
      reducer.ready(std::vector<ReadyGradient>{{"a", a}, {"b", b}});
      reducer.wait();
      EXPECT_EQ(a, Values(100, 1.0f));
      EXPECT_EQ(b, Values(100, 2.0f));
    });
}

TEST(ReadyTogether, MatchesSeparateCallsInLearnedOrder) {
  run_ranks(2, {}, [](Transport& transport) {
    ReadyModel model(transport, {.codec = "int8"}), plain(transport, {.codec = "int8"});
    for (int step = 0; step < 2; ++step) {
      const Values wanted = plain.step({0, 1, 2}, step);
      model.ready({0, 1, 2}, step);
      model.reducer.wait();
      Values found;
      for (std::size_t i = 0; i < 3; ++i)
        found.insert(found.end(), model.result(i).begin(), model.result(i).end());
      EXPECT_EQ(found, wanted);
    }
  });
}

}  // namespace
}  // namespace tersor::testing
