// Who a process is among the ranks that run one program, and what NCCL has to be told where several
// of them share a GPU. Handed on in the environment.
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

struct RankPlace {
  int rank = 0;
  int ranks = 1;
  /// Where ranks meet: all of them reach it, and no run had it before. Over NCCL rank 0 writes the
  /// unique id there, for one communicator.
  std::filesystem::path file;

  /// With the file in `file_variable`.
  Variables variables(const char* file_variable = kIdFileVariable) const;
};

/// By variables that say which rank of how many. Throws InvalidArgument where they are no numbers,
/// or no rank below a number of ranks.
RankPlace place_by(const char* rank_variable, const char* ranks_variable,
                   std::filesystem::path file);

/// From the three variables above; nullopt where none of them is set: nobody started this process
/// as a rank. Throws InvalidArgument where some are missing, or are no rank below a number of
/// ranks.
std::optional<RankPlace> place_of_process();

/// NCCL refuses two ranks on one device of one host. So where there are fewer devices than ranks
/// each rank pretends to be a host of its own, which leaves it sockets over loopback, and takes few
/// of the device's blocks, so that all find room at once. Empty where each rank has a device.
Variables shared_device_variables(int rank, int ranks, int devices);

/// The device of a rank where all processes see the same `devices`.
inline int device_of(int rank, int devices) { return rank % devices; }

}  // namespace tersor::bench
