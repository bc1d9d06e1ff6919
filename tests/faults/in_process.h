// Scenarios among threads of this process.
#pragma once

#include <tersor/transport.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/elastic_run.h"
#include "tests/faults/loose_run.h"
#include "tests/faults/rank_run.h"

namespace tersor::faults {

/// The transports of a world that a scenario is run on, one a rank.
using MakeWorld = std::function<std::vector<std::unique_ptr<Transport>>(const Scenario& scenario)>;

/// Over the emulated link that the scenario asks for.
std::vector<std::unique_ptr<Transport>> world_of_threads(const Scenario& scenario);

/// The same of a plan of losses.
using MakeElasticWorld = std::function<std::vector<std::unique_ptr<Transport>>()>;
std::vector<std::unique_ptr<Transport>> elastic_world(const ElasticPlan& plan);
std::vector<std::string> complaints_in_process(const ElasticPlan& plan,
                                               const MakeElasticWorld& make);

/// Of what does without a step of all ranks: ServedPlan or GossipPlan.
template <typename Plan>
std::vector<std::string> complaints_in_process(const Plan& plan,
                                               std::vector<std::unique_ptr<Transport>> transports) {
  std::vector<std::optional<LooseReport>> reports(transports.size());
  std::vector<std::jthread> threads;
  for (std::size_t rank = 0; rank < transports.size(); ++rank)
    threads.emplace_back([&, rank] {
      reports[rank] = run_loosely(plan, *transports[rank], {});
      transports[rank].reset();
    });
  threads.clear();
  return judge(plan, reports);
}

/// Runs a scenario, each rank on a thread of its own, and judges it: its ranks, what they held
/// before, that no thread stays behind, and that a fresh world works afterwards. Every complaint is
/// a sentence.
std::vector<std::string> complaints_in_process(const Scenario& scenario, const MakeWorld& make);

}  // namespace tersor::faults
