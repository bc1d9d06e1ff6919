// Runs scenarios on threads of this process.
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

/// Creates the transports of a scenario, one per rank.
using MakeWorld = std::function<std::vector<std::unique_ptr<Transport>>(const Scenario& scenario)>;

/// Transports over the scenario's emulated link.
std::vector<std::unique_ptr<Transport>> world_of_threads(const Scenario& scenario);

/// Transports and run of an elastic plan.
using MakeElasticWorld = std::function<std::vector<std::unique_ptr<Transport>>()>;
std::vector<std::unique_ptr<Transport>> elastic_world(const ElasticPlan& plan);
std::vector<std::string> complaints_in_process(const ElasticPlan& plan,
                                               const MakeElasticWorld& make);

/// Runs a plan without steps of all ranks (ServedPlan or GossipPlan) and judges the reports.
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

/// Runs a scenario with a thread per rank and judges the run. The verdict covers the reports of all
/// ranks, the results before the fault, leftover threads, and new transports afterwards. Returns a
/// sentence per complaint.
std::vector<std::string> complaints_in_process(const Scenario& scenario, const MakeWorld& make);

}  // namespace tersor::faults
