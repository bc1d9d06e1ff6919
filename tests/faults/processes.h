// Ranks as processes that this one forks, and the files in which they tell how they ended.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tersor::faults {

class Processes {
 public:
  /// A rank, in a process of its own, with a folder that all share; what it tells, line by line.
  using Run =
      std::function<std::vector<std::string>(int rank, const std::filesystem::path& folder)>;

  /// Starts them.
  Processes(int ranks, Run run);
  /// Kills those that are left.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Waits until all but those who may never tell have told, for a minute at most. What each told;
  /// none of who did not.
  std::vector<std::optional<std::vector<std::string>>> wait(const std::set<int>& fatal) const;

 private:
  std::filesystem::path report(int rank) const;
  bool all_told(const std::set<int>& fatal) const;
  void start(int rank);
  void tell(int rank, const std::vector<std::string>& lines) const;

  Run run_;
  std::filesystem::path folder_;
  std::vector<pid_t> processes_;
};

}  // namespace tersor::faults
