// Training with an elastic reducer, drawn from a seed. One or two ranks are lost at some message,
// possibly during the agreement after the first loss. Contains the run of each rank, and the checks
// of the remaining ranks.
#pragma once

#include <tersor/reducer.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/faults/rank_run.h"

namespace tersor::faults {

/// A rank lost after `operations` of its own operations on all channels. If `in_recovery`, counting
/// starts at the rank's first message of the agreement on the remaining ranks.
struct Victim {
  int rank = 0;
  FaultKind kind = FaultKind::kThrow;  ///< or kStop; for processes kKill or kSuspend
  unsigned operations = 1;
  bool in_recovery = false;
};

struct ElasticPlan {
  std::uint64_t seed = 0;
  int ranks = 2;
  int steps = 1;
  std::string codec;
  Algorithm algorithm = Algorithm::kAuto;
  ProgressBy progress = ProgressBy::kThread;
  Weighted weighted = Weighted::kOff;
  std::vector<std::size_t> counts;  ///< values of each parameter
  std::chrono::milliseconds timeout{0};
  std::vector<Victim> victims;

  const Victim* victim(int rank) const;
  std::string text() const;
};

ElasticPlan draw_elastic_plan(std::uint64_t seed, Home home);

/// The report of a rank: members per step, the last step according to the loss and to the rank's
/// own count, final weights.
struct ElasticReport {
  enum class Ending : std::uint8_t { kTrained, kTooFew, kError };

  Ending ending = Ending::kError;
  std::string message;
  std::vector<std::vector<int>> members;  ///< of each step
  std::vector<std::string> complaints;
  std::uint64_t weights = 0;  ///< a digest

  std::vector<std::string> lines() const;
  static ElasticReport of(const std::vector<std::string>& lines);
};

/// Trains on one rank until its end. `doom` provides the faults of a victim.
ElasticReport run_elastic(const ElasticPlan& plan, Transport& transport, const Doom& doom);

/// Complaints about the reports of all ranks. Lost ranks have no report.
std::vector<std::string> judge(const ElasticPlan& plan,
                               const std::vector<std::optional<ElasticReport>>& reports);

}  // namespace tersor::faults
