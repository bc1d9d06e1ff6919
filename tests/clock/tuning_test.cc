// The tuner's measurements and the cost model's predictions, compared with an emulated link in
// virtual time.
#include <gtest/gtest.h>
#include <tersor/tersor.h>
#include <atomic>

#include <cmath>
#include <string>
#include <vector>

#include "comm/tuning/link_probe.h"
#include "comm/tuning/model.h"
#include "tests/clock/clock.h"

namespace tersor::test {
namespace {

using namespace std::chrono_literals;

double latency_of(const Link& link) { return std::chrono::duration<double>(link.latency).count(); }

TEST(LinkProbe, MeasuresEmulatedLink) {
  for (const int ranks : {2, 3, 4})
    for (const char* text : {"100Mbit,1ms", "1Gbit,500us", "10Gbit,20us"}) {
      SCOPED_TRACE(::testing::Message() << text << ", " << ranks << " ranks");
      const Link link = parse_link(text);
      run_on_clock(ranks, link, [&](Transport& transport) {
        const LinkFigures found = probe_link(transport, Memory::kHost, 10s);
        EXPECT_NEAR(8 / found.seconds_per_byte / link.bits_per_second, 1, 0.05);
        EXPECT_NEAR(found.latency, latency_of(link), 0.01 * latency_of(link));
        EXPECT_NEAR(found.seconds_per_message, 0, 1e-6);
      });
    }
}

// Two hosts of two ranks. Half as many bytes leave a host if its ranks sum first.
TEST(Tuner, ChoosesHierarchicalForSharedHosts) {
  const Link link{.bits_per_second = 1e9, .latency = 50us, .ranks_per_host = 2};
  const std::size_t count = 1 << 21;
  std::vector<std::vector<float>> results(4);
  run_on_clock(4, link, [&](Transport& transport) {
    Tuner tuner(transport);
    EXPECT_NEAR(tuner.link().seconds_per_byte * 1e9 / 8, 1, 0.01) << "the whole link";
    std::vector<float> values;
    for (int call = 0; call == 0 || !tuner.settled(Dtype::kF32, count); ++call) {
      values.assign(count, static_cast<float>(transport.rank() + 1));
      allreduce(transport, values, {.codec = "auto", .tuner = &tuner});
    }
    EXPECT_EQ(tuner.choose(Dtype::kF32, count).algorithm, Algorithm::kHierarchical)
        << tuner.explain();
    EXPECT_NE(tuner.predict(Dtype::kF32, count).algorithm, Algorithm::kHierarchical);
    results[static_cast<std::size_t>(transport.rank())] = values;
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
}

TEST(Tuner, PredictsInt8ForSlowLink) {
  run_on_clock(2, parse_link("100Mbit,100us"), [&](Transport& transport) {
    Tuner tuner(transport);
    EXPECT_EQ(tuner.predict(Dtype::kF32, 1 << 20).codec, "int8") << tuner.explain();
  });
}

struct Candidate {
  std::string codec;
  Algorithm algorithm;
};

double seconds_of_allreduce(const Candidate& candidate, int ranks, const Link& link,
                            std::size_t count) {
  std::atomic<double> slowest = 0;
  run_on_clock(ranks, link, [&](Transport& transport) {
    std::vector<float> gradient(count, 1.0f);
    transport.barrier({.name = "start", .tag = transport.reserve_tags(1)}).wait_synchronize();
    const auto start = Clock::now();
    allreduce(transport, gradient, {.codec = candidate.codec, .algorithm = candidate.algorithm});
    const double seconds = seconds_since(start);
    double before = slowest;
    while (before < seconds && !slowest.compare_exchange_weak(before, seconds)) {
    }
  });
  return slowest;
}

double predicted_seconds(const Candidate& candidate, int ranks, const Link& link,
                         std::size_t count) {
  const auto codec = make_codec(candidate.codec);
  const LinkFigures figures{.latency = latency_of(link),
                            .seconds_per_byte = 8 / link.bits_per_second};
  return predict_allreduce({.codec = codec.get(),
                            .algorithm = candidate.algorithm,
                            .count = count,
                            .ranks = ranks},
                           {.network = {.link = figures}})
      .seconds;
}

// Within 1 % for long gradients, and within 20 % for short gradients dominated by latencies.
TEST(CostModel, PredictsAllreduceTime) {
  const Candidate candidates[] = {{"none", Algorithm::kNative},
                                  {"bf16", Algorithm::kTwoShot},
                                  {"int8", Algorithm::kTwoShot},
                                  {"int8", Algorithm::kOneShot}};
  for (const Candidate& candidate : candidates)
    for (const int ranks : {2, 3, 4, 8})
      for (const char* text : {"50Mbit,100us", "200Mbit,100us", "1Gbit,50us"})
        for (const std::size_t count : {std::size_t{1} << 10, std::size_t{1} << 18}) {
          const Link link = parse_link(text);
          const double ratio = predicted_seconds(candidate, ranks, link, count) /
                               seconds_of_allreduce(candidate, ranks, link, count);
          SCOPED_TRACE(::testing::Message()
                       << candidate.codec << " " << algorithm_name(candidate.algorithm) << " "
                       << ranks << " " << text << " " << count);
          EXPECT_GT(ratio, 0.99);
          EXPECT_LT(ratio, count > 1024 ? 1.01 : 1.2);
        }
}

}  // namespace
}  // namespace tersor::test
