// `tersor-bench allreduce` with small sizes: records, effect of the link, and the reducer.
#include <fmt/format.h>
#include <tersor/error.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "bench/common/compare.h"
#include "bench/ranks/fleet.h"
#include "bench/ranks/gradients.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Allreduce : public ProgramTest {
 protected:
  /// "int8 two-shot 1024"
  static std::string way_of(const Json& record) {
    return fmt::format("{} {} {}", record["codec"].get<std::string>(),
                       record["algorithm"].get<std::string>(), record["count"].get<std::size_t>());
  }
};
class AllreduceRealTime : public ProgramTest {};  // measures wall-clock time

TEST_F(Allreduce, MeasuresNoneAndBf16WithEveryCodec) {
  const Json records = records_of({"allreduce", "--codec", "int8", "int4+ef", "--min", "4K",
                                   "--max", "16K", "--iterations", "3", "--ranks", "3"});
  std::set<std::string> seen;
  for (const Json& record : records) {
    expect_fields(record,
                  {"codec", "algorithm", "transport", "link", "ranks", "dtype", "count", "seconds",
                   "algbw", "busbw", "wire_bytes", "relative_error", "identical"});
    EXPECT_TRUE(record["identical"].get<bool>());
    EXPECT_GT(record["wire_bytes"], 0);
    const double bytes = 4.0 * record["count"].get<double>();
    const double algbw = record["algbw"];
    EXPECT_NEAR(algbw, bytes / record["seconds"].get<double>() / 1e9, 1e-9 * algbw);
    EXPECT_NEAR(record["busbw"].get<double>(), algbw * 4 / 3, 1e-9 * algbw);
    EXPECT_TRUE(seen.insert(way_of(record)).second) << record;
  }
  const auto measured = [&](std::string_view way, std::string_view count) {
    return std::ranges::count_if(
        seen, [&](const std::string& one) { return one.starts_with(way) && one.ends_with(count); });
  };
  for (const char* count : {" 1024", " 4096"}) {
    for (const char* way : {"none ", "bf16 two-shot", "int8 ", "int4+ef "})
      EXPECT_EQ(measured(way, count), 1) << way << count;
    EXPECT_EQ(measured("bf16 ", count), 2) << count;
  }
  EXPECT_EQ(seen.size(), 10u);
}

TEST_F(Allreduce, RejectsInvalidKillArguments) {
  const auto said = [](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"allreduce", "--codec", "int8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_NE(outcome.code, 0);
    return outcome.error;
  };
  EXPECT_NE(said({"--kill", "2@5"}).find("take --transport tcp"), std::string::npos);
  EXPECT_NE(said({"--kill", "2@5", "--dims", "4,4"}).find("excludes"), std::string::npos);
  for (const char* text : {"2", "2@", "@5", "2@0", "2@5x", "two@5"})
    EXPECT_NE(said({"--kill", text}).find("is no RANK@STEP"), std::string::npos) << text;
}

// bf16 messages with f32 sums have a record in addition to bf16 sums, once, even if also requested.
TEST_F(Allreduce, Bf16WithF32SumsIsMoreAccurate) {
  for (const std::string codec : {"int8", "bf16"}) {
    const Json records =
        records_of({"allreduce", "--codec", codec, "--algorithm", "two-shot", "--min", "64K",
                    "--max", "64K", "--iterations", "1", "--ranks", "8"});
    std::map<std::string, double> errors;
    for (const Json& record : records) errors[way_of(record)] = record["relative_error"];
    EXPECT_EQ(errors.size(), records.size());
    ASSERT_TRUE(errors.contains("bf16 two-shot 16384")) << codec;
    EXPECT_LT(errors["bf16 two-shot 16384"], 0.0026) << "two roundings";
    if (codec == "bf16") continue;
    EXPECT_GT(errors["bf16 native 16384"], 1.2 * errors["bf16 two-shot 16384"]);
  }
}

// The error depends on the number of ranks, because the ranks share scales.
TEST_F(Allreduce, MeasuresNativeOnlyCodecs) {
  const Json records = records_of({"allreduce", "--codec", "intsum", "intsum:bits=16+ef", "--min",
                                   "16K", "--max", "16K", "--iterations", "2", "--ranks", "3"});
  ASSERT_EQ(records.size(), 5u);  // with none and bf16, measured twice
  for (const Json& record : records) EXPECT_TRUE(record["identical"].get<bool>());
  EXPECT_LT(records[3]["relative_error"], 0.05);
  EXPECT_LT(records[4]["relative_error"], 1e-3);
  EXPECT_LT(records[3]["wire_bytes"].get<double>(), 0.4 * records[0]["wire_bytes"].get<double>());
}

TEST_F(Allreduce, ReduceScatterRunsHierarchically) {
  const Json records =
      records_of({"allreduce", "--collective", "reduce_scatter", "--codec", "int8", "int8+ef",
                  "--algorithm", "hierarchical", "--ranks", "4", "--link", "none,per_host=2",
                  "--min", "64K", "--max", "64K", "--iterations", "2"});
  ASSERT_EQ(records.size(), 4u);  // with none and bf16
  for (const Json& record : records) {
    EXPECT_EQ(record["collective"], "reduce_scatter");
    EXPECT_LT(record["relative_error"], 0.02);
    const double algbw = record["algbw"];
    EXPECT_NEAR(record["busbw"].get<double>(), algbw * 3 / 4, 1e-9 * algbw);
  }
  EXPECT_EQ(records[0]["algorithm"], "one-shot");
  EXPECT_EQ(records[2]["algorithm"], "hierarchical");
  EXPECT_EQ(records[3]["algorithm"], "hierarchical");
}

TEST_F(Allreduce, EmulatedLinkLimitsSpeed) {
  const Json records = records_of({"allreduce", "--codec", "int8", "--min", "64K", "--max", "64K",
                                   "--link", "20Mbit", "--iterations", "1"});
  const double wire_seconds = 2 * 0.75 * 65536 * 8 / 20e6;
  EXPECT_GE(records[0]["seconds"].get<double>(), wire_seconds);
  EXPECT_GT(records[0]["wire_seconds"].get<double>(), 0);
  EXPECT_LT(records[3]["wire_bytes"], records[2]["wire_bytes"]) << "int8 against bf16";
}

TEST_F(Allreduce, AlgorithmsCanBeForced) {
  for (const std::string algorithm : {"one-shot", "two-shot"})
    EXPECT_EQ(records_of({"allreduce", "--codec", "int8", "--algorithm", algorithm, "--max", "4K",
                          "--iterations", "1"})[3]["algorithm"],
              algorithm);
}

TEST_F(Allreduce, MeasuresSeveralGrids) {
  const Json records =
      records_of({"allreduce", "--ranks", "4", "--codec", "int8", "--algorithm", "two-shot",
                  "--dims", "4", "2,2", "--min", "64K", "--max", "64K", "--iterations", "1"});
  ASSERT_EQ(records.size(), 5u);
  EXPECT_EQ(records[0]["dims"], Json::array());
  EXPECT_EQ(records[3]["dims"], (std::vector{4}));
  EXPECT_EQ(records[4]["dims"], (std::vector{2, 2}));
  EXPECT_LT(records[3]["relative_error"].get<double>(), records[4]["relative_error"].get<double>());
  const Outcome outcome = run({"allreduce", "--dims", "2x2"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.error.find("\"2x2\" is no grid: write e.g. 16,16"), std::string::npos)
      << outcome.error;
}

TEST_F(Allreduce, EveryRankReportsItsFailure) {
  const Outcome outcome = run({"allreduce", "--codec", "int8", "--ranks", "3", "--dims", "4,4",
                               "--max", "4K", "--iterations", "1"});
  EXPECT_EQ(outcome.code, 2);
  for (const char* text : {"rank 0: ", "rank 1: ", "rank 2: ", "tersor-bench: dims are 4 x 4"})
    EXPECT_NE(outcome.error.find(text), std::string::npos) << outcome.error;
}

TEST(Fleet, PrintsEachDistinctRankError) {
  ::testing::internal::CaptureStderr();
  const auto fleet = make_thread_fleet(3, {});
  EXPECT_THROW(fleet->run([](Rank& rank) { throw Error(fmt::format("reason {}", rank.index())); }),
               Error);
  const std::string text = ::testing::internal::GetCapturedStderr();
  for (const char* line : {"rank 0: reason 0\n", "rank 1: reason 1\n", "rank 2: reason 2\n"})
    EXPECT_NE(text.find(line), std::string::npos) << text;
}

TEST_F(Allreduce, RunsWithASingleRank) {
  for (const Json& record : records_of({"allreduce", "--ranks", "1", "--max", "4K"})) {
    EXPECT_EQ(record["wire_bytes"], 0);
    EXPECT_EQ(record["relative_error"], 0);
  }
}

TEST_F(Allreduce, MeasuresReducerSteps) {
  const Json records = records_of({"allreduce", "--codec", "int8", "--min", "256K", "--max", "256K",
                                   "--link", "1Gbit", "--parameters", "8", "--iterations", "2"});
  for (const Json& record : records) {
    expect_fields(record, {"parameters", "backward_seconds", "wire_seconds", "exposed_seconds",
                           "hidden", "encode_seconds", "decode_seconds"});
    EXPECT_EQ(record["parameters"], 8);
    EXPECT_GE(record["hidden"], 0);
    EXPECT_LE(record["hidden"], 1);
    EXPECT_GE(record["seconds"], record["backward_seconds"]);
  }
}

TEST_F(AllreduceRealTime, ReducerOverlapsWireWithBackwardPass) {
  for (const Json& record :
       records_of({"allreduce", "--codec", "int8", "--min", "8M", "--max", "8M", "--link", "4Gbit",
                   "--parameters", "8", "--iterations", "3"}))
    EXPECT_GT(record["hidden"], 0.2) << record;
}

TEST(RankGradients, CheckSumRejectsWrongSums) {
  const RankGradients gradients(5000, Dtype::kF32, 3);
  std::vector<float> sum(gradients.sum().begin(), gradients.sum().end());
  EXPECT_LT(check_sum(gradients, "int8", sum), 1e-6);
  const std::vector<float> one_rank(gradients.of(0).as<float>().begin(),
                                    gradients.of(0).as<float>().end());
  EXPECT_THROW(check_sum(gradients, "int8", one_rank), Error);
  EXPECT_THROW(check_sum(gradients, "none", one_rank), Error);
}

TEST(RankGradients, RanksHaveOwnGradientAndOnlyFirstHasSum) {
  const RankGradients all(1000, Dtype::kF32, 3), first(1000, Dtype::kF32, 3, 0);
  const RankGradients last(1000, Dtype::kF32, 3, 2);
  EXPECT_TRUE(std::ranges::equal(first.sum(), all.sum()));
  EXPECT_EQ(first.error_limit("int8"), all.error_limit("int8"));
  EXPECT_TRUE(std::ranges::equal(last.of(2).as<float>(), all.of(2).as<float>()));
  EXPECT_TRUE(last.sum().empty());
}

TEST(Fleet, AllRanksDetectDifferentResults) {
  const auto fleet = make_thread_fleet(3, {});
  std::atomic<int> seen{0};
  fleet->run([&](Rank& rank) {
    const std::vector<std::byte> same(9);
    std::vector<std::byte> other(9);
    EXPECT_NO_THROW(check_identical(rank, same, "int8"));
    if (rank.index() == 2) other.back() = std::byte{1};
    try {
      check_identical(rank, other, "int8");
    } catch (const Error&) {
      ++seen;
    }
  });
  EXPECT_EQ(seen, 3);
}

TEST(Fleet, GathersInRankOrder) {
  make_thread_fleet(4, {})->run([](Rank& rank) {
    const int own[] = {rank.index(), 10 * rank.index()};
    const auto all = rank.gather(std::span<const int>(own));
    for (int other = 0; other < 4; ++other)
      EXPECT_EQ(all[static_cast<std::size_t>(other)], (std::vector<int>{other, 10 * other}));
    EXPECT_EQ(rank.from_rank0(own[0] + 5), 5);
  });
}

TEST(Fingerprint, DistinguishesBitsPositionsAndLengths) {
  std::vector<std::byte> bytes(100);
  std::set<std::uint64_t> prints = {fingerprint(bytes)};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = std::byte{1};
    prints.insert(fingerprint(bytes));
    bytes[i] = std::byte{0};
  }
  bytes.pop_back();
  prints.insert(fingerprint(bytes));
  EXPECT_EQ(prints.size(), 102u);
}

TEST(RankGradients, TakesMedianOfSlowestRanks) {
  const std::vector<std::vector<double>> seconds = {{1, 5, 3}, {2, 1, 9}};
  EXPECT_EQ(median_of_slowest(seconds), 5);
}

}  // namespace
}  // namespace tersor::bench
