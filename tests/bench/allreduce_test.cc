// `tersor-bench allreduce` on small sizes: the records, that the link is felt, and the reducer.
#include <tersor/error.h>

#include <set>

#include "bench/ranks.h"
#include "tests/bench/program.h"

namespace tersor::bench {
namespace {

class Allreduce : public ProgramTest {};
class AllreduceRealTime : public ProgramTest {};  // holds a clock to what it measures

TEST_F(Allreduce, NoneAndBf16StandBesideEveryCodec) {
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
    seen.insert(record["codec"].get<std::string>() + " " +
                std::to_string(record["count"].get<std::size_t>()));
  }
  EXPECT_EQ(seen,
            (std::set<std::string>{"none 1024", "none 4096", "bf16 1024", "bf16 4096", "int8 1024",
                                   "int8 4096", "int4+ef 1024", "int4+ef 4096"}));
}

TEST_F(AllreduceRealTime, TheEmulatedLinkIsFelt) {
  const Json records = records_of({"allreduce", "--codec", "int8", "--min", "64K", "--max", "64K",
                                   "--link", "20Mbit", "--iterations", "1"});
  const double wire_seconds = 2 * 0.75 * 65536 * 8 / 20e6;
  EXPECT_GE(records[0]["seconds"].get<double>(), wire_seconds);
  EXPECT_GE(records[0]["wire_seconds"].get<double>(), 0.9 * wire_seconds);
  EXPECT_LT(records[2]["seconds"], records[1]["seconds"]) << "int8 against bf16";
}

TEST_F(Allreduce, AlgorithmsCanBeForced) {
  for (const std::string algorithm : {"one-shot", "two-shot"})
    EXPECT_EQ(records_of({"allreduce", "--codec", "int8", "--algorithm", algorithm, "--max", "4K",
                          "--iterations", "1"})[2]["algorithm"],
              algorithm);
}

TEST_F(Allreduce, OneRankIsLegal) {
  for (const Json& record : records_of({"allreduce", "--ranks", "1", "--max", "4K"})) {
    EXPECT_EQ(record["wire_bytes"], 0);
    EXPECT_EQ(record["relative_error"], 0);
  }
}

TEST_F(AllreduceRealTime, TheReducerHidesTheWireBehindTheBackwardPass) {
  const Json records = records_of({"allreduce", "--codec", "int8", "--min", "8M", "--max", "8M",
                                   "--link", "4Gbit", "--parameters", "8", "--iterations", "3"});
  for (const Json& record : records) {
    expect_fields(record, {"parameters", "backward_seconds", "wire_seconds", "exposed_seconds",
                           "hidden", "encode_seconds", "decode_seconds"});
    EXPECT_EQ(record["parameters"], 8);
    EXPECT_GT(record["hidden"], 0.2) << record;
    EXPECT_GE(record["seconds"], record["backward_seconds"]);
  }
}

TEST(RankGradients, AWrongSumIsNotTimed) {
  const RankGradients gradients(5000, Dtype::kF32, 3);
  std::vector<float> sum(gradients.sum().begin(), gradients.sum().end());
  EXPECT_LT(check_sum(gradients, "int8", sum), 1e-6);
  const std::vector<float> one_rank(gradients.of(0).as<float>().begin(),
                                    gradients.of(0).as<float>().end());
  EXPECT_THROW(check_sum(gradients, "int8", one_rank), Error);
  EXPECT_THROW(check_sum(gradients, "none", one_rank), Error);
}

TEST(RankGradients, RanksThatDifferAreSeen) {
  const std::vector<std::byte> a(4), b(4, std::byte{1});
  const std::vector<ConstByteSpan> same = {a, a, a}, other = {a, a, b};
  EXPECT_NO_THROW(check_identical(same, "int8"));
  EXPECT_THROW(check_identical(other, "int8"), Error);
}

TEST(RankGradients, TheSlowestRankOfTheMedianIterationCounts) {
  const std::vector<std::vector<double>> seconds = {{1, 5, 3}, {2, 1, 9}};
  EXPECT_EQ(median_of_slowest(seconds), 5);
}

}  // namespace
}  // namespace tersor::bench
