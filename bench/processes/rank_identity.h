// The rank of a process in a group of processes, passed in the environment. Also the NCCL settings
// for ranks that share a GPU.
#pragma once

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

/// Reads rank and number of ranks from variables. Throws InvalidArgumentError unless both are
/// numbers and the rank is below the number of ranks.
RankIdentity identity_by(const char* rank_variable, const char* ranks_variable,
                         std::filesystem::path file);

/// Reads the three variables above. Returns nullopt if no variable is set: this process was not
/// started as a rank. Throws InvalidArgumentError if some variables are missing or invalid.
std::optional<RankIdentity> identity_of_process();

/// NCCL rejects two ranks on one device of one host. If there are fewer devices than ranks, each
/// rank therefore claims to be a separate host, and NCCL uses sockets over loopback. Each rank also
/// uses few blocks of the device, so all ranks run at once. Returns no variables if each rank has a
/// device.
Variables shared_device_variables(int rank, int ranks, int devices);

/// The device of a rank if all processes see the same `devices`.
inline int device_of(int rank, int devices) { return rank % devices; }

}  // namespace tersor::bench
