// Ranks as forked processes, and the files with their reports.
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
  /// Runs a rank in its process, with a folder shared by all ranks. Returns the report as lines.
  using Run =
      std::function<std::vector<std::string>(int rank, const std::filesystem::path& folder)>;

  /// Starts the processes.
  Processes(int ranks, Run run);
  /// Kills the remaining processes.
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Waits at most a minute for the reports of all ranks except `fatal`. Returns a report per rank,
  /// or none for ranks without a report.
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
