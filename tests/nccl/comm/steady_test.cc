// Collectives and reducer over NCCL after warm-up: no allocations, no waits, graphs, and mismatched
// calls.
#include "tests/device_comm/model.h"
#include "tests/nccl/nccl_ranks.h"

#include <cmath>
#include <memory>

namespace tersor::test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kCount = 6007;

/// A rank's gradient with all memory for allreduces.
class Gradient {
 public:
  Gradient(NcclRank& rank, CollectiveOptions options)
      : rank_(rank),
        location_{Memory::kDevice, rank.stream},
        wanted_{.codec = options.codec, .count = kCount},
        gradient_(kCount, Dtype::kF32, location_),
        state_(wanted_, rank.transport, location_),
        options_(std::move(options)) {
    options_.workspace = &workspace_;
    if (make_codec(options_.codec)->has_feedback()) options_.state = &state_.state();
  }

  void write(int step) {
    gradient_.write(
        testing::gaussian(kCount, static_cast<std::uint64_t>(step * 10 + rank_.rank())));
  }
  void reduce() { allreduce(rank_.transport, gradient_.span(), options_, rank_.stream); }
  Values result() const { return gradient_.read(); }
  Values residuals() const { return state_.read(); }
  std::uint32_t step() const { return state_.step(); }

 private:
  NcclRank& rank_;
  Location location_;
  Case wanted_;
  PlacedValues gradient_;
  PlacedState state_;
  CollectiveWorkspace workspace_;
  CollectiveOptions options_;
};

const CollectiveOptions kWays[] = {
    {.codec = "int8+ef", .algorithm = Algorithm::kTwoShot, .chunk_count = 2048},
    {.codec = "topk:density=0.05+ef"},
    {.codec = "int4:rounding=stochastic+ef", .algorithm = Algorithm::kOneShot},
    {.codec = "none"},
    {.codec = "bf16", .algorithm = Algorithm::kNative, .chunk_count = 2048},
};

TEST(NcclCollectives, SecondCallsNeitherAllocateNorWait) {
  for (const CollectiveOptions& way : kWays)
    on_nccl(3, [&](NcclRank& rank) {
      Gradient gradient(rank, way);
      gradient.reduce();
      gradient.write(1);
      SCOPED_TRACE(way.codec);
      expect_no_wait(rank, [&] {
        for (int i = 0; i < 3; ++i) gradient.reduce();
      });
    });
}

TEST(NcclCollectives, GraphsMatchCallsBitForBit) {
  for (const CollectiveOptions& way : kWays)
    for_each_order(3, [&] {
      on_nccl(3, [&](NcclRank& rank) {
        Gradient called(rank, way), replayed(rank, way);
        for (Gradient* gradient : {&called, &replayed}) {
          gradient->write(0);
          gradient->reduce();
        }
        const Graph graph(rank, [&] { replayed.reduce(); });
        for (int step = 1; step < 4; ++step) {
          called.write(step);
          called.reduce();
          replayed.write(step);
          graph.replay(rank.stream);
          EXPECT_EQ(called.result(), replayed.result()) << way.codec;
          EXPECT_EQ(called.residuals(), replayed.residuals()) << way.codec;
        }
        EXPECT_EQ(called.step(), replayed.step());
      });
    });
}

TEST(NcclCollectives, CaptureRequiresPriorEqualCall) {
  on_nccl(2, [](NcclRank& rank) {
    Gradient gradient(rank, {.codec = "int8"});
    const Graph refused(rank, [&] {
      expect_error<InvalidArgumentError>([&] { gradient.reduce(); }, "CollectiveWorkspace");
    });
    gradient.write(0);
    EXPECT_NO_THROW(gradient.reduce());
  });
}

TEST(NcclCollectives, DefaultChunksAreLongerThanOnHosts) {
  WatchedNccl nccl;
  run_nccl(nccl, 2, [](NcclRank& rank) {
    EXPECT_EQ(rank.transport.traits().chunk_count, kNcclChunkCount);
    EXPECT_GT(kNcclChunkCount, kDefaultChunkCount);
  });
}

// The owners of parts rotate from parameter to parameter.
TEST(NcclReducer, SumsEachGradientInOneNcclCall) {
  WatchedNccl nccl;
  constexpr int kRanks = 4, kParameters = 3, kSteps = 2;
  const NcclRun run = run_nccl(nccl, kRanks, [&](NcclRank& rank) {
    const Location location{Memory::kDevice, rank.stream};
    std::vector<std::unique_ptr<PlacedValues>> gradients;
    GradientReducer reducer(rank.transport,
                            {.codec = "none", .bucket_bytes = 4096, .stream = rank.stream});
    for (int i = 0; i < kParameters; ++i) {
      gradients.push_back(std::make_unique<PlacedValues>(kCount, Dtype::kF32, location));
      reducer.add(std::to_string(i), gradients.back()->span(), kCount, 1);
    }
    for (int step = 0; step < kSteps; ++step) {
      for (int i = 0; i < kParameters; ++i) reducer.ready(std::to_string(i));
      reducer.wait();
    }
    rank.meet();
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(kRanks));
  EXPECT_EQ(nccl.calls("ncclAllReduce"), kRanks * kParameters * kSteps);
}

/// Two gradients share a message. Rank 1 has them in the other order, and later in other memory.
TEST(NcclReducer, GradientAddressesMayDifferByRank) {
  for (const std::size_t columns : {1u, 200u})
    on_nccl(2, [&](NcclRank& rank) {
      constexpr std::size_t kBias = 200;
      const std::size_t matrix = kBias * columns;
      const bool turned = rank.rank() == 1;
      GradientReducer reducer(
          rank.transport,
          {.codec = "none", .algorithm = Algorithm::kNative, .stream = rank.stream});
      std::vector<DeviceBytes> memories;
      for (int step = 0; step < 2; ++step) {
        if (step == 0 || turned) memories.emplace_back((matrix + kBias) * sizeof(float));
        DeviceBytes& memory = memories.back();
        Values values(matrix + kBias, 1.0f);
        std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(turned ? 0 : matrix), kBias, 9.0f);
        memory.fill(values, rank.stream);
        const ValueSpan weights = memory.values().subspan(turned ? kBias : 0, matrix);
        const ValueSpan bias = memory.values().subspan(turned ? 0 : matrix, kBias);
        if (step == 0) reducer.add("matrix", weights, kBias, columns);
        if (step == 0) reducer.add("bias", bias, kBias, 1);
        reducer.ready("bias", bias);
        reducer.ready("matrix", weights);
        reducer.wait();
        EXPECT_EQ(fetch<float>(memory.span(), rank.stream), values);
      }
    });
}

/// All ranks know both calls, so no signatures are gathered. The messages have equal lengths.
TEST(NcclCollectives, MismatchedFramesYieldNanAndError) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    const CollectiveOptions ways[] = {{.codec = "int8"},
                                      {.codec = "int8", .chunk_count = std::size_t{1} << 21}};
    Gradient first(rank, ways[0]), second(rank, ways[1]);
    first.reduce();
    second.reduce();
    Gradient& mixed = rank.rank() == 0 ? first : second;
    mixed.write(1);
    mixed.reduce();
    for (const float value : mixed.result()) ASSERT_TRUE(std::isnan(value));
    expect_error<WireError>([&] { mixed.reduce(); }, "signature");
    EXPECT_THROW(first.reduce(), TransportError);  // the fault is permanent
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
}

ReducerOptions one_codec(const NcclRank& rank) {
  return {.codec = "int8+ef", .chunk_count = 2048, .seed = 1, .stream = rank.stream};
}

TEST(NcclReducer, StepsNeitherAllocateNorWait) {
  on_nccl(3, [](NcclRank& rank) {
    Model model(rank.transport, {Memory::kDevice, rank.stream}, one_codec(rank));
    for (int step = 0; step < 2; ++step) model.reduce();
    expect_no_wait(rank, [&] {
      for (int step = 0; step < 3; ++step) model.reduce();
    });
  });
}

TEST(NcclReducer, StepIsCapturedAndReplayed) {
  for_each_order(3, [] {
    on_nccl(2, [](NcclRank& rank) {
      const Location location{Memory::kDevice, rank.stream};
      Model called(rank.transport, location, one_codec(rank));
      Model replayed(rank.transport, location, one_codec(rank));
      for (Model* model : {&called, &replayed})
        for (int step = 0; step < 2; ++step) model->step(step);
      const Graph graph(rank, [&] { replayed.reduce(); });
      for (int step = 2; step < 5; ++step) {
        replayed.write(step);
        graph.replay(rank.stream);
        EXPECT_EQ(called.step(step), replayed.read());
      }
      EXPECT_TRUE(called.reducer().save_state() == replayed.reducer().save_state());
    });
  });
}

TEST(NcclReducer, RejectsNewParametersAfterCapture) {
  on_nccl(2, [](NcclRank& rank) {
    const Location location{Memory::kDevice, rank.stream};
    PlacedValues first(kCount, Dtype::kF32, location), second(kCount, Dtype::kF32, location);
    GradientReducer reducer(rank.transport, {.codec = "int8+ef", .stream = rank.stream});
    reducer.add("first", first.span(), kCount, 1);
    const auto step = [&] {
      reducer.ready("first");
      reducer.wait();
    };
    step();
    step();
    const Graph graph(rank, step);
    EXPECT_THROW(reducer.add("second", second.span(), kCount, 1), InvalidArgumentError);
  });
}

TEST(NcclReducer, RejectsCaptureOfTransactionalStep) {
  on_nccl(2, [](NcclRank& rank) {
    const Location location{Memory::kDevice, rank.stream};
    PlacedValues gradient(kCount, Dtype::kF32, location);
    GradientReducer reducer(
        rank.transport,
        {.codec = "int8+ef", .transactional = Transactional::kOn, .stream = rank.stream});
    reducer.add("w", gradient.span(), kCount, 1);
    reducer.ready("w");
    reducer.wait();
    const Graph refused(rank, [&] { EXPECT_THROW(reducer.ready("w"), InvalidArgumentError); });
    reducer.ready("w");
    EXPECT_NO_THROW(reducer.wait());
  });
}

/// The progress of ticks differs between ranks, so a wait there would change the order of sends.
TEST(NcclReducer, HandleWaitRequiresFlush) {
  on_nccl(2, [](NcclRank& rank) {
    const Location location{Memory::kDevice, rank.stream};
    PlacedValues first(kCount, Dtype::kF32, location), second(kCount, Dtype::kF32, location);
    GradientReducer reducer(rank.transport, {.bucket_bytes = 4096, .stream = rank.stream});
    reducer.add("first", first.span(), kCount, 1);
    reducer.add("second", second.span(), kCount, 1);
    for (int step = 0; step < 3; ++step) {
      const ReducerHandle handle = reducer.ready(rank.rank() == 0 ? "first" : "second");
      EXPECT_THROW(handle.wait(), InvalidArgumentError);
      reducer.ready(rank.rank() == 0 ? "second" : "first");
      reducer.flush();
      handle.wait();
      EXPECT_TRUE(handle.test());
    }
  });
}

/// A mistake in a capture must not change the transport.
TEST(NcclCollectives, RejectedSecondCaptureLeavesTransportUsable) {
  on_nccl(2, [](NcclRank& rank) {
    Gradient gradient(rank, {.codec = "int8"});
    gradient.reduce();
    const Graph graph(rank, [&] { gradient.reduce(); });
    try {
      const Graph refused(rank, [&] { EXPECT_THROW(gradient.reduce(), InvalidArgumentError); });
    } catch (const CudaError&) {
      // Work queued before the mistake is not joined again.
    }
    gradient.write(1);
    EXPECT_NO_THROW(gradient.reduce());
    EXPECT_FALSE(std::isnan(gradient.result().front()));
  });
}

/// The reducer's work runs after the trainer's queued work, and before the trainer's next work.
TEST(NcclReducer, OrdersWorkWithTrainerStream) {
  for_each_order(10, [] {
    on_nccl(2, [](NcclRank& rank) {
      const Location location{Memory::kDevice, rank.stream};
      PlacedValues input(kCount, Dtype::kF32, location), output(kCount, Dtype::kF32, location);
      PlacedValues gradient(kCount, Dtype::kF32, location);
      input.write(Values(kCount, static_cast<float>(1 + rank.rank())));
      GradientReducer reducer(rank.transport, {.codec = "none", .stream = rank.stream});
      reducer.add("w", gradient.span(), kCount, 1);
      for (int step = 0; step < 3; ++step) {
        kernels::copy_bytes(gradient.span().pointer(), input.span().pointer(),
                            kCount * sizeof(float), rank.stream);
        reducer.ready("w");
        reducer.wait();
        kernels::copy_bytes(output.span().pointer(), gradient.span().pointer(),
                            kCount * sizeof(float), rank.stream);
      }
      EXPECT_EQ(output.read(), Values(kCount, 1.5f));
    });
  });
}

TEST(NcclReducer, MissingGradientRaisesError) {
  WatchedNccl nccl;
  const NcclRun run = run_nccl(nccl, 2, [](NcclRank& rank) {
    const Location location{Memory::kDevice, rank.stream};
    PlacedValues first(kCount, Dtype::kF32, location), second(kCount, Dtype::kF32, location);
    GradientReducer reducer(rank.transport, {.codec = "int8+ef", .stream = rank.stream});
    reducer.add("first", first.span(), kCount, 1);
    reducer.add("second", second.span(), kCount, 1);
    reducer.ready("first");
    EXPECT_THROW(reducer.wait(), InvalidArgumentError);
  });
  EXPECT_EQ(run.errors, std::vector<std::string>(2));
}

}  // namespace
}  // namespace tersor::test
