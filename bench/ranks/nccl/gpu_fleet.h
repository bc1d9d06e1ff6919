// Ranks in separate processes over NCCL, each with a GPU or a share of a GPU.
#pragma once

#include <memory>
#include <string>

#include "bench/processes/rank_processes.h"
#include "bench/ranks/fleet.h"

namespace tersor::bench {

inline constexpr std::string_view kNcclSum = "ncclAllReduce";

/// Makes this process's part of a fleet, on the device of `identity`. Throws InvalidArgumentError
/// if `options.ranks` differs from `identity`, and the exceptions of NcclCommunicator.
std::unique_ptr<Fleet> make_gpu_fleet(const FleetOptions& options, const RankIdentity& identity);

/// The sharing of a device between processes: time slices of some milliseconds each, or concurrent
/// computation under NVIDIA's MPS.
enum class Sharing { kTimeSliced, kConcurrent };
/// The sharing of the current device.
Sharing sharing_of_device();

/// "one GPU, sockets over loopback: …" if ranks share devices, because times then say nothing about
/// a network. Empty otherwise.
std::string sharing_note(int ranks, int devices, Sharing sharing);

}  // namespace tersor::bench
