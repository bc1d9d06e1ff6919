// Starts one process for each rank and waits for them.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/processes/rank_place.h"

namespace tersor::bench {

/// What becomes of what ranks print.
enum class RankOutput : std::uint8_t {
  kOfFirst,  ///< rank 0's is this process's own; of the others only errors are seen
  kCaught,   ///< all of it comes back in RankEnding::output
};

struct RankCommand {
  std::vector<std::string> words;  ///< the program's path, then its arguments
  int ranks = 2;
  int devices = 1;                              ///< that all of them see
  int first = 0;                                ///< rank to start: those below are somebody else's
  const char* file_variable = kIdFileVariable;  ///< tells each where ranks meet
  RankOutput output = RankOutput::kOfFirst;
  Variables variables = {};  ///< beside those that say who a process is
};

/// How a rank's process ended.
struct RankEnding {
  int status = 0;     ///< exit status, or 128 + signal
  bool late = false;  ///< was killed because time was up
  std::string output = {};
};

/// How long ranks may take.
struct RankLimits {
  std::chrono::milliseconds all = std::chrono::hours(1);
  /// From the first one that fails on: ranks that wait for it have deadlines of their own.
  std::chrono::milliseconds after_failure = std::chrono::minutes(1);
};

/// Processes that run one program, each told its place. Those still running end with this object.
class RankProcesses {
 public:
  /// Throws Error where a process cannot be started.
  explicit RankProcesses(const RankCommand& command);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// Where the ranks meet; goes with this object.
  std::filesystem::path file() const { return folder_ / "meeting"; }
  /// Waits for all, and kills those for which time is up.
  std::vector<RankEnding> wait(const RankLimits& limits = {});

 private:
  struct Rank {
    pid_t process = 0;  // 0: has ended
    RankEnding ending;
  };

  void start(const RankCommand& command, int rank);
  std::filesystem::path output_file(int rank) const;
  bool reap();
  void kill_all();

  std::filesystem::path folder_;
  RankOutput output_;
  int first_;
  std::vector<Rank> ranks_;
};

/// How this process was started, to start it again: the path of its program, then its arguments.
std::vector<std::string> own_command();

}  // namespace tersor::bench
