// Faults over TCP: a rank fails, is killed or is suspended. No rank hangs or gets a wrong sum, and
// every rank raises an error. Ranks are threads of one process, or forked processes.
#include <gtest/gtest.h>
#include <tersor/tcp.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/faults/elastic_run.h"
#include "tests/faults/in_process.h"
#include "tests/faults/loose_run.h"
#include "tests/faults/processes.h"
#include "tests/faults/thread_count.h"
#include "tests/faults/verdict.h"
#include "tests/support/seeds.h"
#include "tests/tcp/meeting.h"

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

constexpr const char* kVariable = "TERSOR_FAULT_SEEDS";  // "17" or "1-1000"
constexpr const char* kSeeds = "1-50";

/// One or several connections per pair of ranks.
template <typename Plan>
int connections_of(const Plan& plan) {
  return 1 + static_cast<int>(plan.seed % 3);
}

template <typename Plan>
std::unique_ptr<Transport> meet(const Plan& plan, const fs::path& folder, int rank) {
  return make_tcp_transport(
      folder / "meeting", rank, plan.ranks,
      TcpOptions{.address = "127.0.0.1", .connections = connections_of(plan)});
}

/// Faults of processes. `stall` is the duration of a stall.
Doom doom_of(std::chrono::milliseconds stall) {
  return {.stall = [stall] { std::this_thread::sleep_for(stall); },
          .kill = [] { std::raise(SIGKILL); },
          .suspend = [] { std::raise(SIGSTOP); }};
}

template <typename Plan>
std::string repeat(const Plan& plan) {
  return "\n" + plan.text() + "\nrepeat with: " + kVariable + "=" + std::to_string(plan.seed) +
         " tersor_tcp_faults_test";
}

class TcpFaults : public ::testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, TcpFaults, ::testing::ValuesIn(test::seeds_of(kVariable, kSeeds)),
                         [](const auto& seed) { return std::to_string(seed.param); });

TEST_P(TcpFaults, AllThreadsEndInTime) {
  const Scenario scenario = draw_scenario(GetParam(), Home::kThreads);
  const auto make = [](const Scenario& of) {
    return test::tcp_transports(of.ranks, {.connections = connections_of(of)});
  };
  for (const std::string& complaint : complaints_in_process(scenario, make))
    ADD_FAILURE() << complaint << repeat(scenario);
}

/// The complaints of a forked process.
std::vector<std::string> complaints_of(const Scenario& scenario, int rank, const fs::path& folder) {
  const auto before = count_threads();
  auto transport = meet(scenario, folder, rank);
  const RankReport ended = run_rank(scenario, *transport, doom_of(2 * scenario.timeout + 1s));
  transport.reset();
  std::vector<std::string> complaints;
  const auto sound = sound_digests(scenario, complaints)[static_cast<std::size_t>(rank)];
  for (std::string& complaint :
       judge(scenario, rank, ended, sound, Clock::time_point::min(), Ends::kHeard))
    complaints.push_back(std::move(complaint));
  if (threads_left(before) > 0) complaints.push_back("threads stay behind");
  return complaints;
}

TEST_P(TcpFaults, AllProcessesEndInTime) {
  const Scenario scenario = draw_scenario(GetParam(), Home::kProcesses);
  Processes processes(scenario.ranks, [&](int rank, const fs::path& folder) {
    return complaints_of(scenario, rank, folder);
  });
  std::set<int> fatal;
  if (is_fatal(scenario.fault.kind)) fatal.insert(scenario.fault.rank);
  const auto told = processes.wait(fatal);
  for (int rank = 0; rank < scenario.ranks; ++rank) {
    if (fatal.contains(rank)) continue;
    const auto& complaints = told[static_cast<std::size_t>(rank)];
    if (!complaints) ADD_FAILURE() << "rank " << rank << " never reported" << repeat(scenario);
    for (const std::string& complaint : complaints.value_or(std::vector<std::string>{}))
      ADD_FAILURE() << complaint << repeat(scenario);
  }
}

TEST_P(TcpFaults, ElasticThreadsContinue) {
  const ElasticPlan plan = draw_elastic_plan(GetParam(), Home::kThreads);
  const auto make = [&] {
    return test::tcp_transports(plan.ranks, {.connections = connections_of(plan)});
  };
  for (const std::string& complaint : complaints_in_process(plan, make))
    ADD_FAILURE() << complaint << repeat(plan);
}

/// Runs ranks as processes. Ranks in `fatal` need not report.
template <typename Report, typename Plan, typename Run>
void expect_processes_go_on(const Plan& plan, const std::set<int>& fatal, const Run& run) {
  Processes processes(plan.ranks, [&](int rank, const fs::path& folder) {
    const auto transport = meet(plan, folder, rank);
    return run(*transport).lines();
  });
  std::vector<std::optional<Report>> reports;
  for (const auto& lines : processes.wait(fatal))
    reports.push_back(lines ? std::optional(Report::of(*lines)) : std::nullopt);
  for (const std::string& complaint : judge(plan, reports))
    ADD_FAILURE() << complaint << repeat(plan);
}

TEST_P(TcpFaults, ElasticProcessesContinue) {
  const ElasticPlan plan = draw_elastic_plan(GetParam(), Home::kProcesses);
  std::set<int> fatal;
  for (const Victim& one : plan.victims) fatal.insert(one.rank);
  expect_processes_go_on<ElasticReport>(plan, fatal, [&](Transport& transport) {
    return run_elastic(plan, transport, doom_of(0ms));
  });
}

/// Runs a training without steps of all ranks.
template <typename Plan>
void expect_processes_go_on(const Plan& plan) {
  std::set<int> fatal;
  if (plan.victim) fatal.insert(*plan.victim);
  expect_processes_go_on<LooseReport>(plan, fatal, [&](Transport& transport) {
    return run_loosely(plan, transport, doom_of(0ms));
  });
}

template <typename Plan>
void expect_threads_go_on(const Plan& plan) {
  for (const std::string& complaint : complaints_in_process(
           plan, test::tcp_transports(plan.ranks, {.connections = connections_of(plan)})))
    ADD_FAILURE() << complaint << repeat(plan);
}

TEST_P(TcpFaults, ParameterServersOnThreadsContinue) {
  expect_threads_go_on(draw_served_plan(GetParam()));
}
TEST_P(TcpFaults, ParameterServerProcessesContinue) {
  expect_processes_go_on(draw_served_plan(GetParam()));
}
TEST_P(TcpFaults, GossipThreadsContinue) { expect_threads_go_on(draw_gossip_plan(GetParam())); }
TEST_P(TcpFaults, GossipProcessesContinue) { expect_processes_go_on(draw_gossip_plan(GetParam())); }

}  // namespace
}  // namespace tersor::faults
