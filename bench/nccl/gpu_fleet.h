// Ranks in processes of their own, each with a GPU or a share of one, over NCCL.
#pragma once

#include <memory>
#include <string>

#include "bench/fleet.h"
#include "bench/processes/rank_place.h"

namespace tersor::bench {

inline constexpr std::string_view kNcclSum = "ncclAllReduce";

/// The part of this process in a fleet. Takes the device of its place. Throws InvalidArgument where
/// `options.ranks` says another number than the place, and what NcclCommunicator throws.
std::unique_ptr<Fleet> make_gpu_fleet(const FleetOptions& options, const RankPlace& place);

/// How processes share a device: each has it for some milliseconds, or all compute at once, where
/// NVIDIA's MPS runs.
enum class Sharing { kInTurns, kAtOnce };
/// Of the current device.
Sharing sharing_of_device();

/// "one GPU, sockets over loopback: …" where ranks share devices, so that no time tells anything
/// about a network; else empty.
std::string sharing_note(int ranks, int devices, Sharing sharing);

/// Starts this program once for each rank, as it was started itself, and waits for all. Throws
/// Error that names the first rank that failed.
void run_rank_processes(int ranks, int devices);

}  // namespace tersor::bench
