// The run of one rank through a scenario, on any transport, and its report.
#pragma once

#include <tersor/transport.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/faults/caller.h"
#include "tests/faults/scenario.h"

namespace tersor::faults {

/// The end of a rank's run.
enum class Ending : std::uint8_t {
  kCompleted,
  kLeft,  ///< left as required by the scenario
  kTransportError,
  kWireError,
  kInvalidArgument,
  kOther,  ///< any other exception, including the exception thrown by the scenario
};

std::string_view ending_name(Ending ending);

struct RankReport {
  std::vector<std::uint64_t> digests;  ///< of the results of completed steps
  Ending ending = Ending::kCompleted;
  std::string message;                  ///< of the error
  Clock::time_point begun;              ///< start of the last called step
  Clock::time_point ended;              ///< with the error
  Clock::time_point fault_at;           ///< time of the rank's own fault
  std::string later;                    ///< the error of one more call, or empty
  double later_seconds = 0;             ///< duration of this call
  std::vector<std::string> complaints;  ///< about the operation of the remaining ranks
};

/// Implementations of faults for threads or processes.
struct Doom {
  std::function<void()> stall;    ///< returns after all others have given up
  std::function<void()> kill;     ///< does not return
  std::function<void()> suspend;  ///< does not return in time
};

/// The text of the exception of FaultKind::kThrow.
inline constexpr std::string_view kThrownText = "the image archive is empty";

/// Runs the scenario on one rank. The caller owns the transport and destroys the transport after an
/// ending kLeft.
RankReport run_rank(const Scenario& scenario, Transport& transport, const Doom& doom);

/// A digest of the bits of all values.
std::uint64_t digest_of(const Values& values);

}  // namespace tersor::faults
