// What ncclComm_t points to: one rank of a communicator.
#pragma once

#include "tests/ptx_device/nccl/room.h"

#include <nccl.h>

#include <functional>
#include <string>
#include <thread>

struct ncclComm {
  int rank = 0, ranks = 0, device = 0;
  bool blocking = true;
  std::string name;  // of its room
  ptx::nccl::Room* room = nullptr;
  std::atomic<bool> stopped{false}, revoked{false};
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<std::uint64_t> queued{0}, done{0};  // groups of calls, outside of graphs
  std::atomic<int> under_way{0};                  // groups of graphs that are just done
  std::uint64_t turn = 0, splits = 0;
  std::thread starting;

  /// Does `begin`: now, or by a thread where the caller does not want to wait.
  ncclResult_t start(std::function<bool()> begin);
  /// Meets the other ranks. False: stopped, or the system refuses.
  bool enter();
  /// What each rank says, on all; on the host. False: stopped.
  bool tell(const void* word, std::size_t bytes, void* all);
  /// Until the groups queued before this one are done. False: stopped or revoked.
  bool wait_for_turn(std::uint64_t own) const;
  /// Until nothing is queued, as NCCL waits for its kernels; what stands before them in their
  /// streams must come to its end by others. Aborts the process after half a minute.
  void wait_for_device() const;
  /// What a graph holds still names this communicator: it stays, a few words each.
  void leave();
  bool is_over() const { return stopped || revoked; }

 private:
  bool hear(int from, std::size_t bytes, void* word) const;
};
