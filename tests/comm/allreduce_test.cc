// allreduce: equal bits on all ranks, near the exact sum, for all chunk sizes.
#include "comm/transport/forwarding.h"
#include "comm/transport/host/envelope.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <bit>
#include <memory>
#include <string>
#include <tuple>

namespace tersor::testing {
namespace {

struct AllreduceCase {
  std::string codec;
  Algorithm algorithm;
  double allowed;  // relative squared error of the sum
};

std::ostream& operator<<(std::ostream& out, const AllreduceCase& tested) {
  return out << tested.codec << " " << algorithm_name(tested.algorithm);
}

const AllreduceCase kAllreduceCases[] = {
    {"none", Algorithm::kAuto, 1e-12},
    {"none", Algorithm::kNative, 1e-12},
    {"none", Algorithm::kTwoShot, 1e-12},
    {"none", Algorithm::kOneShot, 1e-12},
    {"bf16", Algorithm::kNative, 6e-5},
    {"bf16", Algorithm::kTwoShot, 1e-5},
    {"bf16:rounding=stochastic", Algorithm::kAuto, 4e-5},
    {"f16", Algorithm::kNative, 1e-6},
    {"f16", Algorithm::kOneShot, 1e-6},
    {"int8", Algorithm::kTwoShot, 3e-4},
    {"int8", Algorithm::kOneShot, 2e-4},
    {"int8:rounding=stochastic", Algorithm::kTwoShot, 6e-4},
    {"int4", Algorithm::kTwoShot, 6e-2},
    {"int4", Algorithm::kOneShot, 3e-2},
    {"int4:rounding=stochastic", Algorithm::kOneShot, 6e-2},
    {"hadamard:bits=4", Algorithm::kTwoShot, 0.12},
    {"int4:result=int8", Algorithm::kTwoShot, 3e-2},
    {"int4:result=int8", Algorithm::kOneShot, 3e-2},
    {"hadamard", Algorithm::kOneShot, 0.25},
    {"blocktopk:density=0.1", Algorithm::kTwoShot, 1.0},
    {"blocktopk:density=0.1,values=bf16", Algorithm::kOneShot, 1.0},
    {"topk:density=1", Algorithm::kOneShot, 1e-12},
    {"topk:density=0.1,values=int8", Algorithm::kOneShot, 1.0},
};

class Allreduce : public ::testing::TestWithParam<std::tuple<AllreduceCase, int>> {
 protected:
  static std::vector<Values> reduce(const std::vector<Values>& inputs, CollectiveOptions options) {
    const AllreduceCase& tested = std::get<0>(GetParam());
    options.codec = tested.codec;
    options.algorithm = tested.algorithm;
    return on_ranks(inputs, [&](Transport& transport, Values& gradient) {
      allreduce(transport, gradient, options);
    });
  }
};

TEST_P(Allreduce, AllRanksGetIdenticalBitsNearTheSum) {
  const auto& [tested, ranks] = GetParam();
  for (const std::size_t count : {0ul, 1ul, 255ul, 256ul, 257ul, 4099ul, 100003ul}) {
    const auto inputs = gradients(ranks, count);
    const auto outputs = reduce(inputs, {});
    for (const Values& output : outputs) ASSERT_EQ(output, outputs.front()) << count;
    if (ranks == 1) {
      EXPECT_EQ(outputs.front(), inputs.front());
    }
    EXPECT_LE(squared_error(outputs.front(), exact_sum(inputs)), tested.allowed) << count;
  }
}

TEST_P(Allreduce, IsIndependentOfChunkSize) {
  const auto& [tested, ranks] = GetParam();
  const auto inputs = gradients(ranks, 50021, 7);
  const auto whole = reduce(inputs, {.chunk_count = std::size_t{1} << 30});
  for (const std::size_t chunk : {1ul, 4096ul, 20000ul})
    EXPECT_EQ(reduce(inputs, {.chunk_count = chunk}), whole) << chunk;
}

TEST_P(Allreduce, MeanIsSumDividedByRanks) {
  const auto& [tested, ranks] = GetParam();
  const auto inputs = gradients(ranks, 3001, 3);
  auto wanted = exact_sum(inputs);
  for (double& value : wanted) value /= ranks;
  const auto outputs = reduce(inputs, {.reduction = Reduction::kMean});
  EXPECT_LE(squared_error(outputs.front(), wanted), tested.allowed);
}

TEST_P(Allreduce, SupportsBf16Gradients) {
  const auto& [tested, ranks] = GetParam();
  std::vector<std::vector<Bf16>> halves(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank)
    for (int i = 0; i < 1030; ++i)  // powers of two and their sums are exact in bf16
      halves[static_cast<std::size_t>(rank)].push_back({static_cast<std::uint16_t>(0x3f80)});
  run_ranks(ranks, {}, [&, &tested = tested](Transport& transport) {
    auto& mine = halves[static_cast<std::size_t>(transport.rank())];
    allreduce(transport, mine, {.codec = tested.codec, .algorithm = tested.algorithm});
  });
  const bool is_exact =
      tested.codec.find("0.1") == std::string::npos && !tested.codec.starts_with("had");
  if (!is_exact || ranks > 4) return;
  const float wanted = static_cast<float>(ranks);
  for (const auto& one : halves)
    for (const Bf16 value : one) {
      ASSERT_NEAR(std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16), wanted,
                  0.02f * wanted);
    }
}

INSTANTIATE_TEST_SUITE_P(Cases, Allreduce,
                         ::testing::Combine(::testing::ValuesIn(kAllreduceCases),
                                            ::testing::Values(1, 2, 3, 4, 8)));

TEST(AllreduceError, TwoShotQuantisesTwiceForAnyNumberOfRanks) {
  for (const std::string codec : {"int8", "int4", "hadamard"}) {
    double epsilon = 0;
    for (const int ranks : {1, 2, 4, 16, 64}) {
      const auto inputs = gradients(std::max(ranks, 2), 1 << 15, 11);
      if (ranks == 1) {  // one quantization: each of two ranks decodes both frames at once
        const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
          allreduce(transport, gradient, {.codec = codec, .algorithm = Algorithm::kOneShot});
        });
        epsilon = squared_error(outputs.front(), exact_sum(inputs));
        continue;
      }
      const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
        const int direct[] = {ranks};
        allreduce(transport, gradient,
                  {.codec = codec, .algorithm = Algorithm::kTwoShot, .dims = direct});
      });
      const double found = squared_error(outputs.front(), exact_sum(inputs));
      EXPECT_LE(found, 2 * epsilon * 1.05) << codec << " on " << ranks << " ranks";
      EXPECT_GE(found, 1.5 * epsilon) << codec << " on " << ranks << " ranks";
    }
  }
}

/// The results of some steps plus all residuals equal the inputs, in a single dimension.
void expect_nothing_lost(const AllreduceCase& tested, int ranks, std::size_t count) {
  constexpr int kSteps = 6;
  const auto all = static_cast<std::size_t>(ranks);
  const std::size_t unit = make_codec(tested.codec)->traits().unit;
  std::vector<double> sent(count, 0.0), wanted(count, 0.0);
  std::vector<Values> residuals(all, Values(count)), owners(all);
  std::vector<StateWords> words(all);
  const int dims[] = {ranks};
  for (int rank = 0; rank < ranks; ++rank)
    owners[static_cast<std::size_t>(rank)].resize(owned_count(count, rank, ranks, 5, unit, dims));
  for (int step = 0; step < kSteps; ++step) {
    const auto inputs = gradients(ranks, count, 100 + static_cast<std::uint64_t>(step));
    const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const CollectiveState state{residuals[rank], owners[rank], &words[rank]};
      allreduce(transport, gradient,
                {.codec = tested.codec,
                 .algorithm = tested.algorithm,
                 .dims = dims,
                 .state = &state,
                 .parameter = 5});
    });
    const auto sum = exact_sum(inputs);
    for (std::size_t i = 0; i < count; ++i) {
      wanted[i] += sum[i];
      sent[i] += outputs.front()[i];
    }
  }
  for (std::size_t rank = 0; rank < all; ++rank) {
    EXPECT_EQ(words[rank].step, kSteps);
    for (std::size_t i = 0; i < count; ++i) sent[i] += residuals[rank][i];
  }
  // Parameter 5: part s is owned by rank (s + 5) mod ranks.
  std::size_t next = 0;
  for (std::size_t part = 0; part < all; ++part)
    for (const float value : owners[(part + 5) % all]) sent[next++] += value;
  for (std::size_t i = 0; i < count; ++i)
    ASSERT_NEAR(sent[i], wanted[i], tested.allowed * ranks) << tested.codec << " at " << i;
}

TEST(AllreduceFeedback, ResultsPlusResidualsEqualSumOfInputs) {
  for (const std::string codec :
       {"int8+ef", "int4+ef", "hadamard:bits=1+ef", "hadamard+ef",
        "blocktopk:density=0.05,values=int4+ef", "topk:density=0.05+ef", "bf16+ef"})
    expect_nothing_lost({codec, Algorithm::kAuto, 5e-5}, 4, 9001);
}

TEST(AllreduceFeedback, SparseSumsLoseNothingOnAnyNumberOfRanks) {
  for (const int ranks : {2, 3, 16, 64}) {
    SCOPED_TRACE(ranks);
    expect_nothing_lost({"blocktopk+ef", Algorithm::kTwoShot, 5e-5}, ranks, 40'000);
  }
}

TEST(AllreduceFeedback, MissingStateIsRejected) {
  run_ranks(2, {}, [](Transport& transport) {
    Values gradient(1000, 1.0f);
    expect_error<InvalidArgumentError>(
        [&] { allreduce(transport, gradient, {.codec = "int8+ef"}); }, "state");
  });
}

TEST(AllreduceFeedback, OwnerResidualWithWrongCountIsRejected) {
  run_ranks(4, {}, [](Transport& transport) {
    Values gradient(100000, 1.0f), residual(100000);
    StateWords words;
    const CollectiveState state{residual, {}, &words};
    EXPECT_THROW(allreduce(transport, gradient, {.codec = "int8+ef", .state = &state}),
                 InvalidArgumentError);
  });
}

TEST(AllreduceValues, NonFiniteInputReachesEveryRank) {
  for (const std::string codec :
       {"none", "bf16", "int8", "int4", "hadamard", "blocktopk", "topk:density=0.1"}) {
    auto inputs = gradients(3, 5000);
    inputs[1][777] = INFINITY;
    const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
      allreduce(transport, gradient, {.codec = codec});
    });
    for (const Values& output : outputs) {
      bool finite = true;
      for (const float value : output) finite &= std::isfinite(value);
      EXPECT_FALSE(finite) << codec;
    }
  }
}

TEST(AllreduceStatistics, SparseSumSendsSameBytesOnAnyNumberOfRanks) {
  constexpr std::size_t kCount = std::size_t{1} << 20;
  const Segment segment{.count = kCount};
  const auto codec = make_codec("blocktopk");
  const std::size_t payload =
      codec->plan({.segments = {&segment, 1}}).frame_bytes - sizeof(FrameHeader);
  const std::size_t heads = sizeof(FrameHeader) + sizeof(host::Envelope);  // of a message
  for (const std::size_t ranks : {2, 4, 8, 16})
    run_ranks(static_cast<int>(ranks), {}, [&](Transport& transport) {
      Values gradient = gaussian(kCount, 3);
      CollectiveStatistics sent;
      allreduce(transport, gradient,
                {.codec = "blocktopk", .algorithm = Algorithm::kTwoShot, .statistics = &sent});
      EXPECT_EQ(sent.sent_bytes, 2 * (ranks - 1) * (payload / ranks + heads)) << ranks;
    });
}

// The owner of a part sends the sum to all ranks, and a rank sends less than two payloads. One-shot
// sends ranks − 1 payloads.
TEST(AllreduceStatistics, SparseReducerTrafficStaysBoundedOnEightRanks) {
  constexpr int kRanks = 8;
  constexpr std::size_t kCount = std::size_t{1} << 18;
  const Segment segment{.count = kCount};
  const std::size_t payload =
      make_codec("blocktopk:density=0.01")->plan({.segments = {&segment, 1}}).frame_bytes;
  run_ranks(kRanks, {}, [&](Transport& transport) {
    Values gradient = gaussian(kCount, 3);
    GradientReducer reducer(transport, {.codec = "blocktopk:density=0.01+ef"});
    reducer.add("weight", gradient, 512, 512);
    reducer.ready("weight");
    reducer.wait();
    EXPECT_LT(reducer.parameter_statistics().front().sent_bytes, 3 * payload) << reducer.explain();
  });
}

TEST(AllreduceStatistics, ReportAlgorithmAndSentBytes) {
  run_ranks(4, {}, [](Transport& transport) {
    Values gradient = gaussian(1 << 20, 3);
    CollectiveStatistics none, int8;
    allreduce(transport, gradient, {.codec = "none", .statistics = &none});
    allreduce(transport, gradient, {.codec = "int8", .statistics = &int8});
    EXPECT_EQ(none.algorithm, Algorithm::kNative);
    EXPECT_EQ(int8.algorithm, Algorithm::kTwoShot);
    EXPECT_NEAR(static_cast<double>(none.sent_bytes), 1.5 * 4 * (1 << 20), 0.01 * 6 * (1 << 20));
    EXPECT_NEAR(static_cast<double>(none.sent_bytes) / static_cast<double>(int8.sent_bytes), 3.93,
                0.03);
  });
}

/// Prefers chunks of 4,096 values.
class ShortChunks final : public ForwardingTransport {
 public:
  explicit ShortChunks(Transport& transport)
      : ForwardingTransport(std::shared_ptr<Transport>(std::shared_ptr<void>(), &transport)) {}

  TransportTraits traits() const override {
    TransportTraits traits = inner().traits();
    traits.chunk_count = 4096;
    return traits;
  }
};

TEST(AllreduceStatistics, ChunkSizeDefaultsToTransportAndOptionsOverrideIt) {
  run_ranks(2, {}, [](Transport& transport) {
    ShortChunks own(transport);
    const auto chunks_of = [&](std::size_t chunk_count) {
      Values gradient = gaussian(40'960, 3);
      CollectiveStatistics told;
      allreduce(own, gradient, {.codec = "int8", .chunk_count = chunk_count, .statistics = &told});
      return told.chunks;
    };
    EXPECT_EQ(chunks_of(0), 10u);
    EXPECT_EQ(chunks_of(8192), 5u);
    const auto sent_with = [&](std::size_t chunk_count) {
      GradientReducer reducer(own, {.rules = {{"*", "int8"}}, .chunk_count = chunk_count});
      Values gradient = gaussian(40'960, 3);
      reducer.add("weight", gradient);
      reducer.ready("weight");
      reducer.wait();
      return reducer.parameter_statistics().front().sent_bytes;
    };
    EXPECT_EQ(sent_with(0), sent_with(4096));
    EXPECT_GT(sent_with(0), sent_with(40'960)) << "each chunk has heads of its own";
  });
}

}  // namespace
}  // namespace tersor::testing
