// `tersor-bench predict`, and codec auto in `allreduce`: records, refused arguments, and accuracy
// on the emulated link.
#include <map>

#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Predict : public ProgramTest {};
class PredictRealTime : public ProgramTest {};  // compares measured with predicted time

TEST_F(Predict, PredictsEveryRankCountCodecAndSize) {
  const Json records = records_of(
      {"predict", "--ranks", "8..64", "--codec", "none", "int8", "--bytes", "1M", "64M"});
  ASSERT_EQ(records.size(), 2u * 4 * 2);
  for (const Json& record : records)
    expect_fields(record, {"codec", "algorithm", "link", "ranks", "hosts", "dtype", "count",
                           "seconds", "work_seconds", "wire_bytes", "algbw", "busbw"});
  EXPECT_EQ(records[0]["ranks"], 8);
  EXPECT_EQ(records[7]["ranks"], 64);
  EXPECT_LT(records[9]["seconds"].get<double>(), 0.35 * records[8]["seconds"].get<double>())
      << "int8 against none, 64 MiB";
}

TEST_F(Predict, SharedHostsUseHierarchicalAlgorithm) {
  const std::vector<std::string> common = {"predict", "--ranks", "32", "--codec",
                                           "int8",    "--bytes", "64M"};
  auto together = common;
  together.insert(together.end(), {"--hosts", "4"});
  const Json one = records_of(common), shared = records_of(together);
  EXPECT_EQ(one[0]["hosts"], 32);
  EXPECT_EQ(shared[0]["hosts"], 4);
  EXPECT_EQ(shared[0]["algorithm"], "hierarchical");
}

TEST_F(Predict, ManyRanksUseGrids) {
  const std::vector<std::string> common = {"predict",     "--ranks",   "32..4096", "--codec",
                                           "int8",        "--bytes",   "1M",       "--link",
                                           "25Gbit,10us", "--message", "3us"};
  const Json best = records_of(common);
  ASSERT_EQ(best.size(), 8u);
  EXPECT_EQ(best[0]["dims"], (std::vector{32}));
  for (const std::size_t i : {3, 5, 7}) EXPECT_GT(best[i]["dims"].size(), 1u) << best[i];
  // Messages cost more than a codec on any machine, even a busy one.
  std::vector<std::string> costly = {"predict", "--ranks", "1024",      "--codec", "int8",
                                     "--bytes", "1M",      "--message", "1ms"};
  const Json grid = records_of(costly);
  costly.insert(costly.end(), {"--error-growth", "1"});
  const Json bounded = records_of(costly);
  EXPECT_EQ(bounded[0]["dims"], (std::vector{1024}));
  EXPECT_GT(bounded[0]["seconds"].get<double>(), 3 * grid[0]["seconds"].get<double>());
  const Json given =
      records_of({"predict", "--ranks", "256", "--codec", "int8", "--dims", "16,16"});
  EXPECT_EQ(given[0]["dims"], (std::vector{16, 16}));
}

TEST_F(Predict, MessageOptionSetsMessageCost) {
  const std::vector<std::string> common = {"predict", "--ranks", "8", "--codec", "none"};
  const auto seconds = [&](const std::string& message) {
    auto arguments = common;
    arguments.insert(arguments.end(), {"--message", message});
    return records_of(arguments)[0]["seconds"].get<double>();
  };
  EXPECT_LT(seconds("5us"), 5);
  EXPECT_GT(seconds("5s"), 5);
  EXPECT_GT(seconds("5"), 5);
}

TEST_F(Predict, RejectsInvalidArguments) {
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"are no ranks", {"--ranks", "0"}},
      {"the larger", {"--ranks", "8..4"}},
      {"give a multiple of", {"--ranks", "9", "--hosts", "4"}},
      {"write RATE", {"--link", "fast"}},
      {"needs a link", {"--link", "none"}},
      {"no codec", {"--codec", "auto"}},
      {"crowding", {"--crowding", "nan"}},
      {"dims are 3 x 3", {"--ranks", "8", "--codec", "int8", "--dims", "3,3"}},
      {"error-growth", {"--error-growth", "0.5"}},
  };
  for (const auto& [words, arguments] : wrong) {
    std::vector<std::string> all = {"predict"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.code, 2) << words;
    EXPECT_NE(outcome.error.find(words), std::string::npos) << outcome.error;
  }
}

TEST_F(Predict, MeasuresAutoWithOtherCodecs) {
  const Json records =
      records_of({"allreduce", "--codec", "auto", "--allow", "int8", "int4", "--min", "16K",
                  "--max", "16K", "--ranks", "2", "--iterations", "2"});
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[3]["codec"], "auto");
  EXPECT_NE(records[3].value("chosen", ""), "");
  EXPECT_NE(records[3]["algorithm"], "auto");
  const Outcome outcome = run({"allreduce", "--codec", "auto", "--min", "4K", "--max", "4K",
                               "--iterations", "1", "--explain"});
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_NE(outcome.output.find("predicted"), std::string::npos) << outcome.output;
}

TEST_F(PredictRealTime, PredictionMatchesEmulatedLink) {
  for (const std::string ranks : {"2", "3", "4"})
    for (const std::string link : {"50Mbit,100us", "200Mbit,100us", "1Gbit,50us"}) {
      const Json predicted = records_of({"predict", "--ranks", ranks, "--link", link, "--codec",
                                         "none", "int8", "--bytes", "1M", "4M", "--crowding", "2"});
      const Json measured = records_of({"allreduce", "--ranks", ranks, "--link", link, "--codec",
                                        "int8", "--min", "1M", "--max", "4M", "--iterations", "3"});
      for (const Json& one : predicted)
        for (const Json& other : measured) {
          if (one["codec"] != other["codec"] || one["count"] != other["count"]) continue;
          const double ratio = one["seconds"].get<double>() / other["seconds"].get<double>();
          EXPECT_GT(ratio, 0.75) << one << other;
          EXPECT_LT(ratio, 1.2) << one << other;
        }
    }
}

}  // namespace
}  // namespace tersor::bench
