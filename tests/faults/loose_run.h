// Trainings without steps of all ranks, drawn from a seed: by a parameter server (workers count
// each other's pushes in the weights) and by gossip. One rank may be lost at some call.
#pragma once

#include <tersor/server.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/faults/rank_run.h"

namespace tersor::faults {

/// The report of a rank: complaints, and one final weight.
struct LooseReport {
  std::vector<std::string> complaints;
  double value = 0;

  std::vector<std::string> lines() const;
  static LooseReport of(const std::vector<std::string>& lines);
};

/// Ranks below `servers` serve. Ranks from `first_worker` on work.
struct ServedPlan {
  std::uint64_t seed = 0;
  int ranks = 2, servers = 1, first_worker = 1;
  int clocks = 1;
  ServerOptions options;
  std::size_t count = 1;           ///< values of each parameter; each rank has a parameter
  std::optional<int> victim = {};  ///< a rank with a worker and no server
  int calls = 0;                   ///< pulls and pushes of the victim before the loss
  std::string text() const;
};

struct GossipPlan {
  std::uint64_t seed = 0;
  int ranks = 2;
  std::string topology, codec;
  std::size_t count = 1;
  std::optional<int> victim = {};
  int steps_of_victim = 0;
  std::string text() const;
};

ServedPlan draw_served_plan(std::uint64_t seed);
GossipPlan draw_gossip_plan(std::uint64_t seed);

/// Runs one rank to its end. If `doom` does not kill a victim, the function returns and the caller
/// must destroy the transport at once.
LooseReport run_loosely(const ServedPlan& plan, Transport& transport, const Doom& doom);
LooseReport run_loosely(const GossipPlan& plan, Transport& transport, const Doom& doom);

/// Complaints about the reports of all ranks. Lost ranks have no report.
std::vector<std::string> judge(const ServedPlan& plan,
                               const std::vector<std::optional<LooseReport>>& reports);
std::vector<std::string> judge(const GossipPlan& plan,
                               const std::vector<std::optional<LooseReport>>& reports);

}  // namespace tersor::faults
