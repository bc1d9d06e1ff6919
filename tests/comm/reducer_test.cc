// The GradientReducer: order, buckets, handles, rules, missing parameters, and both kinds of
// progress.
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>

namespace tersor::testing {
namespace {

struct ReducerLayer {
  std::string name;
  std::size_t rows, columns;

  std::size_t count() const { return rows * std::max<std::size_t>(columns, 1); }
};

const std::vector<ReducerLayer> kReducerLayers = {
    {"first.weight", 300, 70}, {"first.bias", 300, 0},    {"second.weight", 100, 300},
    {"second.bias", 100, 0},   {"third.weight", 40, 110}, {"empty", 0, 0}};

/// The model of one rank: gradients by layer, redrawn in each step.
class ReducerModel {
 public:
  explicit ReducerModel(int rank) : rank_(rank) {
    for (const ReducerLayer& layer : kReducerLayers) gradients_.emplace_back(layer.count());
  }

  void add_to(GradientReducer& reducer) {
    for (std::size_t i = 0; i < kReducerLayers.size(); ++i)
      reducer.add(kReducerLayers[i].name, gradients_[i], kReducerLayers[i].rows,
                  kReducerLayers[i].columns);
  }

  void backward(int step) {
    for (std::size_t i = 0; i < kReducerLayers.size(); ++i)
      gradients_[i] = gradient(rank_, step, i);
  }

  static Values gradient(int rank, int step, std::size_t layer) {
    return gaussian(kReducerLayers[layer].count(),
                    static_cast<std::uint64_t>(rank * 1000 + step * 10) + layer);
  }

  // Copies in place, so the added spans stay valid.
  void fill(int step) {
    for (std::size_t i = 0; i < kReducerLayers.size(); ++i) {
      const Values values = gradient(rank_, step, i);
      std::copy(values.begin(), values.end(), gradients_[i].begin());
    }
  }

  std::vector<Values>& gradients() { return gradients_; }

 private:
  int rank_;
  std::vector<Values> gradients_;
};

// Trains for `steps` steps on `ranks` ranks. Returns each rank's gradients after the last step.
std::vector<std::vector<Values>> train(int ranks, int steps, const ReducerOptions& options) {
  std::vector<std::vector<Values>> results(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    ReducerModel model(transport.rank());
    GradientReducer reducer(transport, options);
    model.add_to(reducer);
    for (int step = 0; step < steps; ++step) {
      model.fill(step);
      for (std::size_t i = kReducerLayers.size(); i-- > 0;) reducer.ready(kReducerLayers[i].name);
      reducer.wait();
    }
    results[static_cast<std::size_t>(transport.rank())] = model.gradients();
  });
  return results;
}

double squared_error_of_mean(const std::vector<Values>& found, int ranks, int step) {
  double error = 0, energy = 0;
  for (std::size_t layer = 0; layer < kReducerLayers.size(); ++layer) {
    std::vector<Values> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(ReducerModel::gradient(rank, step, layer));
    const auto sum = exact_sum(all);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const double wanted = sum[i] / ranks;
      error += (found[layer][i] - wanted) * (found[layer][i] - wanted);
      energy += wanted * wanted;
    }
  }
  return error / energy;
}

class Reducers : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Reducers, EveryGradientIsTheMeanOnAllRanks) {
  const auto& [codec, ranks] = GetParam();
  const auto results = train(ranks, 1, {.codec = codec});
  for (const auto& result : results) ASSERT_EQ(result, results.front());
  const bool has_four_bits = codec.starts_with("int4") || codec.starts_with("hadamard:bits=4");
  const bool is_sparse = codec.find("density=") != std::string::npos;
  const double allowed = is_sparse ? 1.0 : has_four_bits ? 5e-2 : 3e-4;
  EXPECT_LE(squared_error_of_mean(results.front(), ranks, 0), allowed);
}

TEST_P(Reducers, CallerProgressMatchesThreadProgressBitwise) {
  const auto& [codec, ranks] = GetParam();
  EXPECT_EQ(train(ranks, 3, {.codec = codec, .progress = ProgressBy::kCaller}),
            train(ranks, 3, {.codec = codec}));
}

TEST_P(Reducers, BucketAndChunkSizesDoNotChangeWeightBits) {
  const auto& [codec, ranks] = GetParam();
  // Results of small parameters depend on the other parameters of the message, and the test ignores
  // the bits.
  const ReducerOptions large{.rules = {{"*.weight", codec}, {"*", "none"}},
                             .algorithm = Algorithm::kAuto,
                             .bucket_bytes = std::size_t{1} << 30};
  ReducerOptions small = large;
  small.bucket_bytes = 1;
  small.chunk_count = 4096;
  const auto a = train(ranks, 3, large), b = train(ranks, 3, small);
  for (std::size_t layer = 0; layer < kReducerLayers.size(); ++layer)
    if (kReducerLayers[layer].name.ends_with("weight")) {
      EXPECT_EQ(a[0][layer], b[0][layer]) << kReducerLayers[layer].name;
    }
}

INSTANTIATE_TEST_SUITE_P(
    Codecs, Reducers,
    ::testing::Combine(::testing::Values("none", "bf16", "int8", "int4+ef",
                                         "int8:rounding=stochastic", "hadamard:bits=4+ef",
                                         "blocktopk:density=0.05+ef", "topk:density=0.05+ef"),
                       ::testing::Values(1, 2, 4)));

TEST(Reducer, ReadyOrderMayDifferPerRank) {
  std::vector<std::vector<Values>> results(3);
  run_ranks(3, {}, [&](Transport& transport) {
    ReducerModel model(transport.rank());
    GradientReducer reducer(transport, {.codec = "int8+ef"});
    model.add_to(reducer);
    std::vector<std::size_t> order(kReducerLayers.size());
    std::iota(order.begin(), order.end(), 0u);
    for (int step = 0; step < 4; ++step) {
      std::rotate(order.begin(), order.begin() + 1 + transport.rank(), order.end());
      model.fill(step);
      for (const std::size_t i : order) reducer.ready(kReducerLayers[i].name);
      reducer.wait();
      if (step == 2) reducer.relearn_order();
    }
    results[static_cast<std::size_t>(transport.rank())] = model.gradients();
  });
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
  EXPECT_LE(squared_error_of_mean(results[0], 3, 3), 3e-3);
}

// Results of each gradient arrive before the next gradient is ready, even without waits in the
// trainer.
TEST(Reducer, SendsWhileTheTrainerComputes) {
  run_ranks(2, parse_link("1Gbit"), [&](Transport& transport) {
    std::vector<Values> gradients(4, Values(1 << 18, 1.0f));  // 1 MiB each: 8.4 ms on the wire
    GradientReducer reducer(transport, {.rules = {{"*", "none"}}, .bucket_bytes = 1});
    for (std::size_t i = 0; i < 4; ++i) reducer.add(std::to_string(i), gradients[i]);
    for (int step = 0; step < 3; ++step) {
      if (step == 2) reducer.reset_statistics();
      const auto until = Clock::now() + std::chrono::seconds(60);
      for (std::size_t i = 0; i < 4; ++i) {
        const ReducerHandle handle = reducer.ready(std::to_string(i));
        if (step == 0) continue;  // the first step learns the order
        while (!handle.test() && Clock::now() < until) std::this_thread::yield();
        EXPECT_TRUE(handle.test()) << i;
      }
      reducer.wait();
    }
    const ReducerStatistics statistics = reducer.statistics();
    EXPECT_EQ(statistics.steps, 1u);
    EXPECT_GT(statistics.wire_seconds, 0.0);
    EXPECT_EQ(statistics.hidden_seconds,
              std::max(0.0, statistics.wire_seconds - statistics.exposed_seconds));
    EXPECT_EQ(statistics.gradient_bytes, 4u << 20);
  });
}

TEST(Reducer, HandlesReportCompletion) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerModel model(transport.rank());
    GradientReducer reducer(transport, {.codec = "none", .bucket_bytes = 1});
    model.add_to(reducer);
    for (int step = 0; step < 2; ++step) {
      model.fill(step);
      std::vector<ReducerHandle> handles;
      for (const ReducerLayer& layer : kReducerLayers) handles.push_back(reducer.ready(layer.name));
      if (step == 0) {
        EXPECT_FALSE(handles[0].test());
        EXPECT_THROW(handles[0].wait(), InvalidArgumentError);  // the first step is sent at its end
        reducer.flush();
      }
      for (const ReducerHandle& handle : handles) handle.wait();
      for (const ReducerHandle& handle : handles) EXPECT_TRUE(handle.test());
      reducer.wait();
    }
  });
}

TEST(Reducer, FlushAllowsNextStepBeforeWait) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(10000);
    GradientReducer reducer(transport, {.codec = "none", .reduction = Reduction::kSum});
    reducer.add("w", gradient, 100, 100);
    for (int step = 1; step <= 5; ++step) {
      const ReducerHandle handle = reducer.ready("w", gradient);
      reducer.flush();
      handle.wait();
      gradient.assign(gradient.size(), static_cast<float>(step));
    }
    reducer.ready("w");
    reducer.flush();
    reducer.wait();
    EXPECT_EQ(gradient.front(), 10.0f);
  });
}

TEST(Reducer, ReadyAcceptsDifferentSpanOfSameSize) {
  run_ranks(2, {}, [](Transport& transport) {
    Values first(5000), other(5000, 2.0f), wrong(4999);
    GradientReducer reducer(transport, {.codec = "none", .reduction = Reduction::kSum});
    reducer.add("w", first, 50, 100);
    EXPECT_THROW(reducer.ready("w", wrong), InvalidArgumentError);
    reducer.ready("w", other);
    reducer.wait();
    EXPECT_EQ(other.front(), 4.0f);
    EXPECT_EQ(first.front(), 0.0f);
  });
}

TEST(Reducer, MissingParameterFailsOnAllRanks) {
  std::atomic<int> errors = 0;
  run_ranks(3, {}, [&](Transport& transport) {
    ReducerModel model(transport.rank());
    model.fill(0);
    try {  // may fail before this rank's reducer exists
      GradientReducer reducer(transport, {.codec = "int8"});
      model.add_to(reducer);
      for (const ReducerLayer& layer : kReducerLayers)
        if (transport.rank() != 1 || layer.name != "second.bias") reducer.ready(layer.name);
      reducer.wait();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("second.bias"), std::string::npos) << error.what();
      ++errors;
    }
  });
  EXPECT_EQ(errors, 3);
}

TEST(Reducer, MissingParameterMayCountAsInactive) {
  constexpr std::size_t kCount = 8192;
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(kCount), other(kCount, 1.0f);
    GradientReducer reducer(
        transport,
        {.codec = "int8+ef", .reduction = Reduction::kSum, .missing = MissingGradient::kInactive});
    reducer.add("w", gradient, 64, 128);
    reducer.add("v", other, 64, 128);
    const Values values = gaussian(kCount, 1);
    for (int step = 0; step < 3; ++step) {
      std::copy(values.begin(), values.end(), gradient.begin());
      if (transport.rank() == 0 || step != 1) reducer.ready("w");
      reducer.ready("v");
      reducer.wait();
      const float scale = step == 1 ? 1.0f : 2.0f;
      for (std::size_t i = 0; i < kCount; ++i)
        ASSERT_NEAR(gradient[i], scale * values[i], 0.1f) << step;
    }
  });
}

TEST(Reducer, InvalidCallsAndNamesAreRejected) {
  run_ranks(1, {}, [](Transport& transport) {
    Values gradient(10);
    GradientReducer reducer(transport, {.rules = {{"*.weight", "int8"}, {"b*", "bf16"}}});
    reducer.add("a.weight", gradient);
    EXPECT_THROW(reducer.add("a.weight", gradient), InvalidArgumentError);
    EXPECT_THROW(reducer.add("nobody", gradient), InvalidArgumentError);
    EXPECT_THROW(reducer.ready("a.bias"), InvalidArgumentError);
    reducer.ready("a.weight");
    EXPECT_THROW(reducer.ready("a.weight"), InvalidArgumentError);
    EXPECT_THROW(reducer.add("b", gradient), InvalidArgumentError);
    EXPECT_THROW(GradientReducer(transport, {.codec = "int9"}), InvalidArgumentError);
  });
}

TEST(Reducer, DefaultRulesUseBf16ForSmallParameters) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerModel model(transport.rank());
    GradientReducer by_default(transport, {.codec = "int4+ef"});
    model.add_to(by_default);
    model.fill(0);
    for (const ReducerLayer& layer : kReducerLayers) by_default.ready(layer.name);
    by_default.wait();
    const auto statistics = by_default.parameter_statistics();
    EXPECT_EQ(statistics[0].codec, "int4+ef");
    EXPECT_EQ(statistics[1].codec, "bf16");
    EXPECT_EQ(statistics[1].reason, "fewer than 4096 values");
    EXPECT_FALSE(statistics[0].codec_may_change);
    EXPECT_NE(by_default.explain().find("second.weight"), std::string::npos);
    EXPECT_GT(by_default.residual_norms()[0], 0.0);
    EXPECT_LT(statistics[0].sent_bytes, statistics[0].gradient_bytes / 6);
  });
}

TEST(Reducer, ExplainCountsParametersAndMessages) {
  run_ranks(2, {}, [](Transport& transport) {
    Values scale(1), shift(1);
    GradientReducer one(transport, {}), two(transport, {});
    one.add("scale", scale);
    two.add("scale", scale);
    two.add("shift", shift);
    for (GradientReducer* reducer : {&one, &two}) {
      reducer->ready("scale");
      if (reducer == &two) reducer->ready("shift");
      reducer->wait();
    }
    EXPECT_NE(one.explain().find("scale: 1 value of f32"), std::string::npos) << one.explain();
    EXPECT_NE(one.explain().find("1 parameter in 1 message,"), std::string::npos) << one.explain();
    EXPECT_NE(two.explain().find("2 parameters in 1 message,"), std::string::npos) << two.explain();
  });
}

TEST(Reducer, LosslessCodecAppliesToSmallParameters) {
  run_ranks(2, {}, [](Transport& transport) {
    ReducerModel model(transport.rank());
    GradientReducer reducer(transport, {.codec = "none"});
    model.add_to(reducer);
    model.fill(0);
    for (const ReducerLayer& layer : kReducerLayers) reducer.ready(layer.name);
    reducer.wait();
    for (const ReducerStatistics& one : reducer.parameter_statistics())
      EXPECT_EQ(one.codec, "none") << one.name;
  });
}

TEST(Reducer, ParameterMismatchFailsOnAllRanks) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(5000 + static_cast<std::size_t>(transport.rank()));
    GradientReducer reducer(transport, {.codec = "int8"});
    reducer.add("w", gradient, 50, 100);
    reducer.ready("w");
    EXPECT_THROW(reducer.wait(), TransportError);
    EXPECT_THROW(reducer.ready("w"), Error);
  });
}

TEST(Reducer, StalledRankFailsOtherRanksAtTimeout) {
  run_ranks(3, {}, [](Transport& transport) {
    Values gradient(50000);
    GradientReducer reducer(transport,
                            {.codec = "int8", .timeout = std::chrono::milliseconds(200)});
    reducer.add("w", gradient, 500, 100);
    reducer.ready("w");
    if (transport.rank() == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
    else
      expect_error<TransportError>([&] { reducer.wait(); }, "rank");
  });
}

}  // namespace
}  // namespace tersor::testing
