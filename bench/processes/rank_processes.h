// Ranks as processes: the rank of a process in a group of processes, passed in the environment, and
// functions that start a process per rank and wait for the processes. Also the NCCL settings for
// ranks that share a GPU.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tersor::bench {

inline constexpr const char* kRankVariable = "TERSOR_RANK";
inline constexpr const char* kRanksVariable = "TERSOR_RANKS";
inline constexpr const char* kIdFileVariable = "TERSOR_NCCL_ID_FILE";

/// Names and values of environment variables.
using Variables = std::vector<std::pair<std::string, std::string>>;

struct RankIdentity {
  int rank = 0;
  int ranks = 1;
  /// The file for the rendezvous of all ranks, new for each run. Over NCCL, rank 0 writes the
  /// unique id of a communicator to this file.
  std::filesystem::path file;

  /// Returns the variables, with the file in `file_variable`.
  Variables variables(const char* file_variable = kIdFileVariable) const;
};

/// Reads the file from `file_variable`, and rank and number of ranks from the variables above or,
/// if the file is set, from a launcher's (Open MPI, PMI, Slurm). Returns nullopt if this process
/// was not started as a rank. Throws InvalidArgumentError if some variables are missing or invalid.
std::optional<RankIdentity> identity_of_process(const char* file_variable = kIdFileVariable);

/// NCCL rejects two ranks on one device of one host. If there are fewer devices than ranks, each
/// rank therefore claims to be a separate host, and NCCL uses sockets over loopback. Each rank also
/// uses few blocks of the device, so all ranks run at once. Returns no variables if each rank has a
/// device.
Variables shared_device_variables(int rank, int ranks, int devices);

/// The device of a rank if all processes see the same `devices`.
inline int device_of(int rank, int devices) { return rank % devices; }

/// The destination of the ranks' output.
enum class RankOutput : std::uint8_t {
  kFirstOnly,  ///< rank 0 prints to this process's output; other ranks print only errors
  kCaptured,   ///< RankResult::output returns all output
};

struct RankCommand {
  std::vector<std::string> argv;  ///< the program's path, then the arguments
  int ranks = 2;
  int devices = 1;  ///< visible to all ranks
  int first = 0;    ///< first rank to start; lower ranks are started elsewhere
  const char* file_variable = kIdFileVariable;  ///< variable with the rendezvous file
  RankOutput output = RankOutput::kFirstOnly;
  Variables variables = {};  ///< in addition to the variables of RankIdentity
};

/// The end of a rank's process.
struct RankResult {
  int status = 0;          ///< exit status, or 128 + signal
  bool timed_out = false;  ///< True if killed after the time limit
  std::string output = {};
};

/// Time limits of ranks.
struct RankLimits {
  std::chrono::milliseconds all = std::chrono::hours(1);
  /// Counts from the first failure, because waiting ranks have their own timeouts.
  std::chrono::milliseconds after_failure = std::chrono::minutes(1);
};

/// A new folder, removed with this object.
class TemporaryFolder {
 public:
  /// Throws Error if the folder cannot be made.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Processes of one program, each with its rank in the environment. The destructor kills running
/// processes.
class RankProcesses {
 public:
  /// Throws Error if a process cannot be started.
  explicit RankProcesses(const RankCommand& command);
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  /// The rendezvous file; removed with this object.
  std::filesystem::path file() const { return folder_.path() / "meeting"; }
  /// Waits for all processes, and kills processes after the time limit.
  std::vector<RankResult> wait(const RankLimits& limits = {});

 private:
  struct Rank {
    pid_t process = 0;  // 0 after the end
    RankResult result;
  };

  void start(const RankCommand& command, int rank);
  std::filesystem::path output_file(int rank) const;
  bool reap();
  void kill_all();

  TemporaryFolder folder_;
  RankOutput output_;
  int first_;
  std::vector<Rank> ranks_;
};

/// Returns this process's command to start another process: the program's path, then the arguments.
std::vector<std::string> own_command();

/// Starts this program once per rank, with this process's arguments, and waits for all ranks.
/// Throws Error that names the first failed rank.
void run_rank_processes(int ranks, int devices);

}  // namespace tersor::bench
