// A training by an elastic reducer, drawn from a seed, of which one rank or two are lost at some
// message, perhaps while the others agree on the first loss: what each rank does, and what all who
// are left must have then.
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

/// A rank that is lost after so many operations of its own, on all channels; of the second one
/// perhaps counted from its first word on who is left.
struct Victim {
  int rank = 0;
  FaultKind kind = FaultKind::kThrow;  ///< or kStop; of processes kKill or kSuspend
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
  Weights weights = Weights::kOff;
  std::vector<std::size_t> counts;  ///< values of each parameter
  std::chrono::milliseconds timeout{0};
  std::vector<Victim> victims;

  const Victim* victim(int rank) const;
  std::string text() const;
};

ElasticPlan draw_elastic_plan(std::uint64_t seed, Home home);

/// What a rank tells: of each step who made it, the number of the loss's last step beside what the
/// rank itself had counted, its weights in the end.
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

/// Trains on one rank until its end. What befalls a victim is up to `doom`.
ElasticReport run_elastic(const ElasticPlan& plan, Transport& transport, const Doom& doom);

/// What is wrong with the reports of all ranks; none of a rank that could not tell.
std::vector<std::string> judge(const ElasticPlan& plan,
                               const std::vector<std::optional<ElasticReport>>& reports);

}  // namespace tersor::faults
