// Runs scenarios on processes. Each event is printed as a line of JSON. A killed or suspended rank
// prints no end, and the caller must detect the loss.
// Usage: mpi_faults describe SEED…
//        mpirun -n RANKS mpi_faults run multiple|single SEED…
// Each scenario must have RANKS ranks. `single` initializes MPI without threads.
#include <mpi.h>
#include <tersor/mpi.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/faults/thread_count.h"
#include "tests/faults/verdict.h"

namespace {

using namespace tersor;
using namespace tersor::faults;
using nlohmann::json;

void print(const json& line) { std::cout << line.dump() + "\n" << std::flush; }

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

void describe(const Scenario& scenario) {
  print({{"seed", scenario.seed},
         {"ranks", scenario.ranks},
         {"fatal", is_fatal(scenario.fault.kind)},
         {"rank", scenario.fault.rank},
         {"text", scenario.text()}});
}

/// Faults of processes.
Doom doom_of(const Scenario& scenario) {
  const auto longer = 2 * scenario.timeout + std::chrono::seconds(1);
  return {.stall = [longer] { std::this_thread::sleep_for(longer); },
          .kill = [] { std::raise(SIGKILL); },
          .suspend = [] { std::raise(SIGSTOP); }};
}

/// Runs the scenario on this rank with a new transport.
RankReport run_over_mpi(const Scenario& scenario) {
  auto transport = make_mpi_transport(MPI_COMM_WORLD);
  const RankReport report = run_rank(scenario, *transport, doom_of(scenario));
  transport.reset();
  // If no rank died, all ranks wait here, because an early exit would be a further fault.
  if (!is_fatal(scenario.fault.kind)) MPI_Barrier(MPI_COMM_WORLD);
  return report;
}

void run(const Scenario& scenario, int rank) {
  const auto before = count_threads();
  print({{"event", "start"}, {"seed", scenario.seed}, {"rank", rank}, {"pid", getpid()}});
  const RankReport report = run_over_mpi(scenario);
  std::vector<std::string> complaints;
  const auto sound = sound_digests(scenario, complaints)[static_cast<std::size_t>(rank)];
  for (std::string& complaint : judge(scenario, rank, report, sound, Clock::time_point::min()))
    complaints.push_back(std::move(complaint));
  const auto left = threads_left(before);
  if (left > 0) complaints.push_back(std::to_string(left) + " threads stay behind");
  print({{"event", "end"},
         {"seed", scenario.seed},
         {"rank", rank},
         {"ending", ending_name(report.ending)},
         {"message", report.message},
         {"complaints", complaints}});
}

void initialise(std::string_view threads) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(nullptr, nullptr, threads == "single" ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE,
                  &level);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

std::vector<Scenario> scenarios_of(std::span<char*> seeds) {
  std::vector<Scenario> scenarios;
  for (const char* seed : seeds)
    scenarios.push_back(draw_scenario(std::stoull(seed), Home::kProcesses));
  return scenarios;
}

bool none_dies(const std::vector<Scenario>& scenarios) {
  return std::none_of(scenarios.begin(), scenarios.end(),
                      [](const Scenario& scenario) { return is_fatal(scenario.fault.kind); });
}

}  // namespace

// MPI_Finalize waits for all ranks, so no rank calls MPI_Finalize after a loss.
int main(int argc, char** argv) {
  const std::span<char*> words(argv, static_cast<std::size_t>(argc));
  const std::string_view verb = words.size() > 1 ? words[1] : "";
  if (verb == "describe") {
    for (const Scenario& scenario : scenarios_of(words.subspan(2))) describe(scenario);
    return 0;
  }
  if (verb != "run" || words.size() < 4) {
    std::cerr << "usage: mpi_faults describe SEED… | mpi_faults run multiple|single SEED…\n";
    return 2;
  }
  initialise(words[2]);
  const auto scenarios = scenarios_of(words.subspan(3));
  for (const Scenario& scenario : scenarios) run(scenario, world_rank());
  if (!none_dies(scenarios)) _exit(0);
  MPI_Finalize();
  return 0;
}
