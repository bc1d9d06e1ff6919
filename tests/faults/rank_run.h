// One rank's way through a scenario, on whatever transport, and what it has to tell afterwards.
#pragma once

#include <tersor/transport.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/faults/caller.h"
#include "tests/faults/scenario.h"

namespace tersor::faults {

/// How a rank's part was over.
enum class Ending : std::uint8_t {
  kCompleted,
  kLeft,  ///< went away as the scenario asks
  kTransportError,
  kWireError,
  kInvalidArgument,
  kOther,  ///< any other exception; the one that a scenario throws is such a one
};

std::string_view ending_name(Ending ending);

struct RankReport {
  std::vector<std::uint64_t> digests;  ///< of the results of the steps that it completed
  Ending ending = Ending::kCompleted;
  std::string message;                  ///< of the error
  Clock::time_point begun;              ///< the last step that it called
  Clock::time_point ended;              ///< with the error
  Clock::time_point fault_at;           ///< when its own fault befell it
  std::string later;                    ///< the error of one more call; empty where that had none
  double later_seconds = 0;             ///< until it came
  std::vector<std::string> complaints;  ///< of how ranks that are left went on
};

/// What a home provides for the faults of its ranks.
struct Doom {
  std::function<void()> stall;    ///< returns once all others have given up
  std::function<void()> kill;     ///< does not return
  std::function<void()> suspend;  ///< does not return in time
};

/// The exception of FaultKind::kThrow says this.
inline constexpr std::string_view kThrownText = "the image archive is empty";

/// Runs the scenario on one rank. The transport stays with the caller, who destroys it where the
/// ending is kLeft.
RankReport run_rank(const Scenario& scenario, Transport& transport, const Doom& doom);

/// Of the bits of all values.
std::uint64_t digest_of(const Values& values);

}  // namespace tersor::faults
