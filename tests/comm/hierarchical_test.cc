// Hierarchical allreduce: for every assignment of hosts, all ranks get the same bits, near the sum.
#include "kernels/scalar/convert.h"
#include "tests/comm/ranks.h"

#include <tersor/tersor.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <tuple>

namespace tersor::testing {
namespace {

using namespace std::chrono_literals;
struct HostsCase {
  std::string codec;
  double allowed;  // relative squared error of the sum
  std::string host_codec = "none";
};

std::ostream& operator<<(std::ostream& out, const HostsCase& tested) {
  return out << tested.codec << ", within a host " << tested.host_codec;
}

const HostsCase kHostsCases[] = {
    {"none", 1e-12},
    {"bf16", 6e-5},
    {"bf16:rounding=stochastic", 1.2e-4},
    {"f16", 1e-6},
    {"int8", 3e-4},
    {"int8", 3e-4, "bf16"},
    {"int8:rounding=stochastic", 6e-4},
    {"int4", 6e-2},
    {"hadamard:bits=4", 0.12},
    {"blocktopk:density=0.1", 1.0},
    {"topk:density=1", 1e-12},
    {"topk:density=0.1,values=int8", 1.0},
    {"none", 2e-5, "bf16"},
};

const Hosts kHosts[] = {
    {0},
    {0, 0},
    {0, 1},
    {0, 0, 1},
    {0, 1, 1, 0},
    {0, 0, 1, 1},
    {7, -3, 7, -3, 7},
    {0, 0, 0, 1, 1, 2},
    {0, 0, 0, 0, 1, 1, 1},
    {0, 1, 2, 3, 3, 2, 1, 0},
    {2, 0, 1, 2, 0, 1, 2, 0, 1},
};

class Hierarchical : public ::testing::TestWithParam<std::tuple<HostsCase, Hosts>> {
 protected:
  static const HostsCase& tested() { return std::get<0>(GetParam()); }
  static const Hosts& hosts() { return std::get<1>(GetParam()); }

  static CollectiveOptions options(CollectiveOptions options = {}) {
    options.codec = tested().codec;
    options.host_codec = tested().host_codec;
    options.algorithm = Algorithm::kHierarchical;
    options.hosts = hosts();
    return options;
  }
  static std::vector<Values> reduce(const std::vector<Values>& inputs,
                                    const CollectiveOptions& others) {
    return on_ranks(inputs, [&](Transport& transport, Values& gradient) {
      allreduce(transport, gradient, options(others));
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Cases, Hierarchical,
                         ::testing::Combine(::testing::ValuesIn(kHostsCases),
                                            ::testing::ValuesIn(kHosts)));

TEST_P(Hierarchical, AllRanksGetIdenticalBitsNearTheSum) {
  for (const std::size_t count : {0ul, 1ul, 511ul, 513ul, 4099ul, 50021ul}) {
    const auto inputs = gradients(ranks_of(hosts()), count);
    const auto outputs = reduce(inputs, {});
    for (const Values& output : outputs) ASSERT_EQ(output, outputs.front()) << count;
    EXPECT_LE(squared_error(outputs.front(), exact_sum(inputs)), tested().allowed) << count;
  }
}

TEST_P(Hierarchical, IsIndependentOfChunkSize) {
  const auto inputs = gradients(ranks_of(hosts()), 20011, 7);
  const auto whole = reduce(inputs, {.parameter = 3, .chunk_count = std::size_t{1} << 30});
  for (const std::size_t chunk : {1ul, 4096ul, 10000ul})
    EXPECT_EQ(reduce(inputs, {.parameter = 3, .chunk_count = chunk}), whole) << chunk;
}

TEST_P(Hierarchical, MeanIsSumDividedByRanks) {
  const auto inputs = gradients(ranks_of(hosts()), 3001, 3);
  auto wanted = exact_sum(inputs);
  for (double& value : wanted) value /= ranks_of(hosts());
  const auto outputs = reduce(inputs, {.reduction = Reduction::kMean});
  EXPECT_LE(squared_error(outputs.front(), wanted), tested().allowed);
}

template <typename Half>
void expect_sum_of_ones(std::uint16_t one, const Hosts& hosts, const CollectiveOptions& options) {
  std::vector<std::vector<Half>> halves(hosts.size(), std::vector<Half>(1030, Half{one}));
  run_ranks(ranks_of(hosts), {}, [&](Transport& transport) {
    allreduce(transport, halves[static_cast<std::size_t>(transport.rank())], options);
  });
  for (const auto& values : halves)
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i].bits, halves.front()[i].bits) << i;
  if (options.codec != "none") return;
  const Half sum = kernels::from_f32<Half>(static_cast<float>(hosts.size()));
  EXPECT_EQ(halves.front().front().bits, sum.bits);
}

// Sums of up to nine ones are exact in both types.
TEST_P(Hierarchical, SupportsHalfPrecisionGradients) {
  expect_sum_of_ones<Bf16>(0x3f80, hosts(), options());
  expect_sum_of_ones<F16>(0x3c00, hosts(), options());
}

// A workspace keeps the splits even if all other arguments change.
TEST_P(Hierarchical, WorkspaceIsReusableAcrossCounts) {
  const auto inputs = gradients(ranks_of(hosts()), 9001, 5);
  const auto wanted = reduce(inputs, {});
  const auto outputs = on_ranks(inputs, [&](Transport& transport, Values& gradient) {
    CollectiveWorkspace workspace;
    Values others = gradient;
    others.resize(700);
    for (int call = 0; call < 3; ++call) {
      Values again = gradient;
      allreduce(transport, others, options({.workspace = &workspace}));
      allreduce(transport, again, options({.workspace = &workspace}));
      if (call == 2) gradient = again;
    }
  });
  EXPECT_EQ(outputs, wanted);
}

/// Adds a rank's residuals at their offsets. Group rank j of parameter 0 has shard j, and owner i
/// has part i.
void add_residuals(const CollectiveState& state, std::size_t first, std::size_t owned_first,
                   std::vector<double>& sums) {
  const auto residual = state.residual.as<float>();
  for (std::size_t i = 0; i < residual.size(); ++i) sums[first + i] += residual[i];
  const auto owned = state.owner_residual.as<float>();
  for (std::size_t i = 0; i < owned.size(); ++i) sums[owned_first + i] += owned[i];
}

class HierarchicalFeedback : public ::testing::TestWithParam<std::tuple<std::string, Hosts>> {};

INSTANTIATE_TEST_SUITE_P(Codecs, HierarchicalFeedback,
                         ::testing::Combine(::testing::Values("int8+ef", "int4+ef", "hadamard+ef",
                                                              "blocktopk:density=0.1+ef",
                                                              "topk:density=0.05+ef", "bf16+ef"),
                                            ::testing::ValuesIn(kHosts)));

TEST_P(HierarchicalFeedback, ResultsPlusResidualsEqualSumOfInputs) {
  const auto& [codec, hosts] = GetParam();
  if (hosts.size() == 1) return;  // nothing is encoded
  constexpr std::size_t kCount = 90001;
  std::vector<Values> residuals, owners;
  std::vector<StateWords> words(hosts.size());
  const std::size_t unit = make_codec(codec)->traits().unit;
  for (int rank = 0; rank < ranks_of(hosts); ++rank) {
    residuals.emplace_back(encoded_count(kCount, rank, hosts, 0, unit));
    owners.emplace_back(owned_count(kCount, rank, hosts, 0, unit));
  }
  std::vector<double> sent(kCount, 0.0), wanted(kCount, 0.0);
  for (int step = 0; step < 4; ++step) {
    const auto inputs = gradients(ranks_of(hosts), kCount, 100 + static_cast<std::uint64_t>(step));
    const auto outputs = on_ranks(inputs, [&, &codec = codec, &hosts = hosts](Transport& transport,
                                                                              Values& values) {
      const auto rank = static_cast<std::size_t>(transport.rank());
      const CollectiveState state{residuals[rank], owners[rank], &words[rank]};
      allreduce(
          transport, values,
          {.codec = codec, .algorithm = Algorithm::kHierarchical, .hosts = hosts, .state = &state});
    });
    for (const Values& output : outputs) ASSERT_EQ(output, outputs.front());
    const auto sum = exact_sum(inputs);
    for (std::size_t i = 0; i < kCount; ++i) {
      wanted[i] += sum[i];
      sent[i] += outputs.front()[i];
    }
  }
  std::vector<std::size_t> owned_first(hosts.size(), 0);  // of each shard
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    std::size_t stage = 0, first = 0;
    for (std::size_t other = 0; other < rank; ++other) {
      if (hosts[other] != hosts[rank]) continue;
      stage += 1;
      first += residuals[other].size();
    }
    if (residuals[rank].empty()) continue;
    add_residuals({residuals[rank], owners[rank], nullptr}, first, first + owned_first[stage],
                  sent);
    owned_first[stage] += owners[rank].size();
  }
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_NEAR(sent[i], wanted[i], 5e-4) << codec << " at " << i;
}

TEST(HierarchicalCounts, EachHostEncodesEachValueOnce) {
  for (const Hosts& hosts : kHosts) {
    if (std::count(hosts.begin(), hosts.end(), hosts.front()) == ranks_of(hosts)) continue;
    for (const int host : hosts) {
      std::size_t encoded = 0;
      for (int rank = 0; rank < ranks_of(hosts); ++rank)
        if (hosts[static_cast<std::size_t>(rank)] == host)
          encoded += encoded_count(70000, rank, hosts, 2);
      EXPECT_EQ(encoded, 70000u);
    }
    std::size_t owned = 0;
    for (int rank = 0; rank < ranks_of(hosts); ++rank) owned += owned_count(70000, rank, hosts, 2);
    EXPECT_EQ(owned, 70000u);
  }
  EXPECT_EQ(encoded_count(1000, 1, Hosts{0, 0}), 0u);
  EXPECT_EQ(encoded_count(1000, 2, Hosts{0, 0, 0, 1}), 0u);
  EXPECT_THROW(encoded_count(1000, 2, Hosts{0, 0}), InvalidArgumentError);
  EXPECT_THROW(owned_count(1000, -1, Hosts{0, 0}), InvalidArgumentError);
}

Algorithm algorithm_on(const Link& link, int ranks, const std::string& codec) {
  std::atomic<Algorithm> chosen{Algorithm::kAuto};
  run_ranks(ranks, link, [&](Transport& transport) {
    Values gradient(200000, 1.0f);
    CollectiveStatistics statistics;
    allreduce(transport, gradient,
              {.codec = codec, .algorithm = Algorithm::kHierarchical, .statistics = &statistics});
    for (const float value : gradient) EXPECT_EQ(value, static_cast<float>(ranks));
    chosen = statistics.algorithm;
  });
  return chosen;
}

TEST(HierarchicalGroups, DefaultToTransportHosts) {
  EXPECT_EQ(algorithm_on(parse_link("none,per_host=2"), 4, "int8"), Algorithm::kHierarchical);
  EXPECT_EQ(algorithm_on(parse_link("none,per_host=4"), 4, "int8"), Algorithm::kNative);
  EXPECT_EQ(algorithm_on({}, 4, "int8"), Algorithm::kTwoShot);
  EXPECT_EQ(algorithm_on({}, 4, "none"), Algorithm::kNative);
}

// All bytes between hosts: with two hosts, each host sends each value once, encoded.
TEST(HierarchicalGroups, OnlyEncodedValuesLeaveAHost) {
  constexpr std::size_t kCount = 1 << 20;
  std::array<std::atomic<std::uint64_t>, 4> sent{};
  run_ranks(4, parse_link("none,per_host=2"), [&](Transport& transport) {
    Values gradient = gaussian(kCount, 3);
    CollectiveStatistics statistics;
    allreduce(transport, gradient,
              {.codec = "int8", .algorithm = Algorithm::kHierarchical, .statistics = &statistics});
    sent[static_cast<std::size_t>(transport.rank())] = statistics.sent_bytes;
  });
  const double shard = kCount / 2;  // one to the neighbor and back as f32, one encoded
  for (const auto& bytes : sent)
    EXPECT_NEAR(static_cast<double>(bytes), shard * (4 + 4 + 1.0156), 0.01 * 9 * shard);
}

TEST(HierarchicalErrors, ReportInvalidHostsAndHostCodec) {
  const auto refused = [](const CollectiveOptions& options) -> std::string {
    std::string text;
    run_ranks(2, {}, [&](Transport& transport) {
      Values gradient(1000, 1.0f);
      try {
        allreduce(transport, gradient, options);
      } catch (const InvalidArgumentError& error) {
        if (transport.rank() == 0) text = error.what();
      }
    });
    return text;
  };
  const Hosts three{0, 0, 1}, one{0, 0};
  CollectiveOptions options{.algorithm = Algorithm::kHierarchical, .hosts = three};
  EXPECT_NE(refused(options).find("hosts has 3 numbers for 2 ranks"), std::string::npos);
  options.hosts = one;
  for (const char* codec : {"int8", "bf16+ef", "bf16:rounding=stochastic"}) {
    options.host_codec = codec;
    EXPECT_NE(refused(options).find("none or bf16"), std::string::npos) << codec;
  }
}

TEST(HierarchicalErrors, WrongResidualSizeIsRejected) {
  run_ranks(4, parse_link("none,per_host=2"), [](Transport& transport) {
    Values gradient(100000, 1.0f), residual(100000);
    StateWords words;
    const CollectiveState state{residual, {}, &words};
    expect_error<InvalidArgumentError>(
        [&] {
          allreduce(transport, gradient,
                    {.codec = "int8+ef", .algorithm = Algorithm::kHierarchical, .state = &state});
        },
        "encoded_count");
  });
}

/// The number of ranks with a TransportError.
template <typename Call>
int failures(int ranks, Call&& call) {
  std::atomic<int> failed{0}, running{ranks};
  run_ranks(ranks, {}, [&](Transport& transport) {
    try {
      call(transport);
    } catch (const TransportError&) {
      ++failed;
    }
    --running;
    while (running > 0) std::this_thread::sleep_for(1ms);
  });
  return failed;
}

TEST(HierarchicalErrors, HostMismatchFailsOnAllRanks) {
  const Hosts some{0, 0, 1, 1, 2}, others{0, 0, 1, 2, 2};
  const int failed = failures(5, [&](Transport& transport) {
    Values gradient(10000, 1.0f);
    allreduce(transport, gradient,
              {.codec = "int8",
               .algorithm = Algorithm::kHierarchical,
               .hosts = transport.rank() == 3 ? others : some,
               .timeout = 1h});  // a hang would end at the test's time limit
  });
  EXPECT_EQ(failed, 5);
}

// The first call makes the splits. A rank is missing in the second call.
TEST(HierarchicalErrors, StalledRankFailsOnAllRanks) {
  const Hosts hosts{0, 0, 1, 1};
  const int failed = failures(4, [&](Transport& transport) {
    Values gradient(10000, 1.0f);
    CollectiveWorkspace workspace;
    const CollectiveOptions options{.codec = "int8",
                                    .algorithm = Algorithm::kHierarchical,
                                    .hosts = hosts,
                                    .timeout = 300ms,
                                    .workspace = &workspace};
    allreduce(transport, gradient, options);
    if (transport.rank() == 2) std::this_thread::sleep_for(1s);
    allreduce(transport, gradient, options);
  });
  EXPECT_EQ(failed, 4);
}

}  // namespace
}  // namespace tersor::testing
