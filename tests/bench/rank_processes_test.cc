// Processes as ranks, with a shell instead of a program: arguments, exits, and timeouts.
#include "bench/processes/rank_processes.h"

#include <gtest/gtest.h>
#include <tersor/error.h>

#include <cstdlib>

namespace tersor::bench {
namespace {

RankCommand shell(const std::string& script, int ranks, int devices = 1) {
  return {.argv = {"/bin/sh", "-c", script},
          .ranks = ranks,
          .devices = devices,
          .output = RankOutput::kCaptured};
}

/// Sets environment variables of this process while this object lives.
class Environment {
 public:
  explicit Environment(Variables variables) : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }

 private:
  Variables variables_;
};

std::string refusal(Variables variables) {
  const Environment environment(std::move(variables));
  try {
    identity_of_process();
  } catch (const InvalidArgumentError& error) {
    return error.what();
  }
  return "none";
}

TEST(RankProcesses, RanksGetTheirIdentityAndACommonFile) {
  RankProcesses processes(shell("echo $TERSOR_RANK of $TERSOR_RANKS $TERSOR_NCCL_ID_FILE", 3));
  const auto results = processes.wait();
  ASSERT_EQ(results.size(), 3u);
  const std::string file = results[0].output.substr(std::string("0 of 3 ").size());
  EXPECT_GT(file.size(), 2u);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].output,
              std::to_string(rank) + " of 3 " + file);
}

TEST(RankProcesses, SetsHostIdsOnlyForSharedDevices) {
  const std::string script = "echo ${NCCL_HOSTID:-none} ${NCCL_NET:-any}";
  const auto sharing = RankProcesses(shell(script, 2, 1)).wait();
  EXPECT_EQ(sharing[0].output, "tersor-rank-0 Socket\n");
  EXPECT_EQ(sharing[1].output, "tersor-rank-1 Socket\n");
  EXPECT_EQ(RankProcesses(shell(script, 2, 2)).wait()[1].output, "none any\n");
}

TEST(RankProcesses, ReportsExitStatusOrSignal) {
  const auto results =
      RankProcesses(shell("[ $TERSOR_RANK = 0 ] && exit 7; kill -KILL $$", 2)).wait();
  EXPECT_EQ(results[0].status, 7);
  EXPECT_EQ(results[1].status, 128 + 9);
  EXPECT_FALSE(results[1].timed_out);
}

TEST(RankProcesses, KillsRemainingRanksAfterFailure) {
  RankProcesses processes(shell("[ $TERSOR_RANK = 0 ] && exit 1; exec sleep 60", 2));
  const auto results = processes.wait({.after_failure = std::chrono::milliseconds(100)});
  EXPECT_EQ(results[0].status, 1);
  EXPECT_FALSE(results[0].timed_out);
  EXPECT_TRUE(results[1].timed_out);
}

TEST(RankProcesses, TimeoutEndsAllRanks) {
  RankProcesses processes(shell("exec sleep 60", 2));
  for (const RankResult& result : processes.wait({.all = std::chrono::milliseconds(100)}))
    EXPECT_TRUE(result.timed_out);
}

TEST(RankProcesses, RejectsMissingProgram) {
  EXPECT_THROW(RankProcesses({.argv = {"/nowhere/program"}}), Error);
}

TEST(RankProcesses, OwnCommandIsThisProgram) {
  const auto words = own_command();
  EXPECT_NE(words.front().find("tersor_bench_test"), std::string::npos) << words.front();
}

TEST(RankIdentity, RoundTripsThroughTheEnvironment) {
  EXPECT_FALSE(identity_of_process().has_value());
  const Environment environment(RankIdentity{1, 4, "/tmp/id"}.variables());
  const auto identity = identity_of_process();
  ASSERT_TRUE(identity.has_value());
  EXPECT_EQ(identity->rank, 1);
  EXPECT_EQ(identity->ranks, 4);
  EXPECT_EQ(identity->file, "/tmp/id");
}

TEST(RankIdentity, ReportsMissingAndInvalidVariables) {
  EXPECT_NE(refusal({{kRankVariable, "0"}}).find(kRanksVariable), std::string::npos);
  EXPECT_NE(refusal({{kRankVariable, "0"}, {kRanksVariable, "2"}}).find(kIdFileVariable),
            std::string::npos);
  EXPECT_NE(refusal(RankIdentity{2, 2, "/tmp/id"}.variables()).find("no rank"), std::string::npos);
  EXPECT_NE(refusal({{kRankVariable, "1x"}, {kRanksVariable, "2"}}).find("1x"), std::string::npos);
}

}  // namespace
}  // namespace tersor::bench
