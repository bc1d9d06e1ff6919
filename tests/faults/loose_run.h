// Trainings that do without a step of all ranks, drawn from a seed, of which one rank may be lost
// at some call: by a parameter server, whose workers count each other's pushes in the weights, and
// by gossip.
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

/// What a rank tells: what was wrong, and a value of its weights in the end.
struct LooseReport {
  std::vector<std::string> complaints;
  double value = 0;

  std::vector<std::string> lines() const;
  static LooseReport of(const std::vector<std::string>& lines);
};

/// Ranks below `servers` serve, those from `first_worker` on work.
struct ServedPlan {
  std::uint64_t seed = 0;
  int ranks = 2, servers = 1, first_worker = 1;
  int clocks = 1;
  ServerOptions options;
  std::size_t count = 1;           ///< values of each of the parameters, one for each rank
  std::optional<int> victim = {};  ///< only works
  int calls = 0;                   ///< of pull and push, that the victim makes
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

/// One rank's part until its end. A victim that `doom` does not kill returns, and its transport is
/// to go at once.
LooseReport run_loosely(const ServedPlan& plan, Transport& transport, const Doom& doom);
LooseReport run_loosely(const GossipPlan& plan, Transport& transport, const Doom& doom);

/// What is wrong with the reports of all ranks; none of a rank that could not tell.
std::vector<std::string> judge(const ServedPlan& plan,
                               const std::vector<std::optional<LooseReport>>& reports);
std::vector<std::string> judge(const GossipPlan& plan,
                               const std::vector<std::optional<LooseReport>>& reports);

}  // namespace tersor::faults
