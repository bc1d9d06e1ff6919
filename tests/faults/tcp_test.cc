// Ranks over TCP, and one of them fails, is killed or stopped: nobody hangs, nobody gets a wrong
// sum, everybody is told. As threads of one process, and as processes that this one forks.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tersor/tcp.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>

#include "tests/faults/in_process.h"
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
constexpr auto kScenarioEndsWithin = 60s;

/// One connection of each pair of ranks, or several.
int connections_of(const Scenario& scenario) { return 1 + static_cast<int>(scenario.seed % 3); }

std::string repeat(const Scenario& scenario) {
  return "\n" + scenario.text() + "\nrepeat with: " + kVariable + "=" +
         std::to_string(scenario.seed) + " tersor_tcp_faults_test";
}

class TcpFaults : public ::testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, TcpFaults, ::testing::ValuesIn(test::seeds_of(kVariable, kSeeds)),
                         [](const auto& seed) { return std::to_string(seed.param); });

TEST_P(TcpFaults, EndInTimeOnAllThreads) {
  const Scenario scenario = draw_scenario(GetParam(), Home::kThreads);
  const auto make = [](const Scenario& of) {
    return test::tcp_transports(of.ranks, connections_of(of));
  };
  for (const std::string& complaint : complaints_in_process(scenario, make))
    ADD_FAILURE() << complaint << repeat(scenario);
}

/// Ranks of a scenario as processes, and the files in which they meet and tell how they ended.
class Processes {
 public:
  explicit Processes(const Scenario& scenario) : scenario_(scenario) {
    std::string name = (fs::temp_directory_path() / "tersor-tcp-faults-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder");
    folder_ = name;
    for (int rank = 0; rank < scenario.ranks; ++rank) start(rank);
  }
  ~Processes() {
    for (const auto& [rank, process] : processes_) kill(process, SIGKILL);
    for (const auto& [rank, process] : processes_) waitpid(process, nullptr, 0);
    fs::remove_all(folder_);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Waits until all have told that are able to.
  void wait() {
    const auto until = Clock::now() + kScenarioEndsWithin;
    while (!all_told() && Clock::now() < until) std::this_thread::sleep_for(5ms);
  }

  std::vector<std::string> complaints() const {
    std::vector<std::string> all;
    for (int rank = 0; rank < scenario_.ranks; ++rank) {
      if (!tells(rank)) continue;
      std::ifstream stream(report(rank));
      if (!stream) all.push_back("rank " + std::to_string(rank) + " never reported");
      for (std::string line; std::getline(stream, line);) all.push_back(line);
    }
    return all;
  }

 private:
  fs::path report(int rank) const { return folder_ / ("report-" + std::to_string(rank)); }
  bool tells(int rank) const {
    return !is_fatal(scenario_.fault.kind) || rank != scenario_.fault.rank;
  }
  bool all_told() const {
    for (int rank = 0; rank < scenario_.ranks; ++rank)
      if (tells(rank) && !fs::exists(report(rank))) return false;
    return true;
  }

  void start(int rank) {
    const pid_t process = fork();
    if (process < 0) throw std::runtime_error("cannot fork");
    if (process == 0) be(rank);
    processes_[rank] = process;
  }

  // A forked process, of which nothing else of the test may run.
  [[noreturn]] void be(int rank) const {
    try {
      tell(rank, run(rank));
      _exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    } catch (...) {
      std::fprintf(stderr, "rank %d: something else was thrown\n", rank);
    }
    _exit(1);
  }

  // Of a forked process.
  std::vector<std::string> run(int rank) const {
    const auto longer = 2 * scenario_.timeout + 1s;
    const Doom doom{.stall = [longer] { std::this_thread::sleep_for(longer); },
                    .kill = [] { std::raise(SIGKILL); },
                    .suspend = [] { std::raise(SIGSTOP); }};
    const auto before = count_threads();
    auto transport = std::make_unique<TcpTransport>(
        folder_ / "meeting", rank, scenario_.ranks,
        TcpOptions{.address = "127.0.0.1", .connections = connections_of(scenario_)});
    const RankReport ended = run_rank(scenario_, *transport, doom);
    transport.reset();
    std::vector<std::string> complaints;
    const auto sound = sound_digests(scenario_, complaints)[static_cast<std::size_t>(rank)];
    for (std::string& complaint :
         judge(scenario_, rank, ended, sound, Clock::time_point::min(), Ends::kHeard))
      complaints.push_back(std::move(complaint));
    if (threads_left(before) > 0) complaints.push_back("threads stay behind");
    return complaints;
  }

  void tell(int rank, const std::vector<std::string>& complaints) const {
    const fs::path part = report(rank).string() + ".part";
    {
      std::ofstream stream(part);
      for (const std::string& complaint : complaints) stream << complaint << "\n";
    }
    fs::rename(part, report(rank));
  }

  const Scenario& scenario_;
  fs::path folder_;
  std::map<int, pid_t> processes_;
};

TEST_P(TcpFaults, EndInTimeOnAllProcesses) {
  const Scenario scenario = draw_scenario(GetParam(), Home::kProcesses);
  Processes processes(scenario);
  processes.wait();
  for (const std::string& complaint : processes.complaints())
    ADD_FAILURE() << complaint << repeat(scenario);
}

}  // namespace
}  // namespace tersor::faults
