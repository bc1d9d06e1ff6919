// The object behind ncclComm_t: one rank of a communicator.
#pragma once

#include "tests/ptx_device/nccl/room.h"

#include <nccl.h>

#include <functional>
#include <string>
#include <thread>

struct ncclComm {
  int rank = 0, ranks = 0, device = 0;
  bool blocking = true;
  std::string name;  // of the shared memory
  ptx::nccl::Room* room = nullptr;
  std::atomic<bool> stopped{false}, revoked{false};
  std::atomic<ncclResult_t> state{ncclSuccess};
  std::atomic<std::uint64_t> queued{0}, done{0};  // groups of calls, outside of graphs
  std::atomic<int> under_way{0};                  // running groups of graphs
  std::uint64_t turn = 0, splits = 0;
  std::thread starting;

  /// Runs `begin`: immediately, or on a thread for a nonblocking communicator.
  ncclResult_t start(std::function<bool()> begin);
  /// Waits for the other ranks. Returns false if stopped, or if the system refuses.
  bool enter();
  /// Gathers data of all ranks on the host. Returns false if stopped.
  bool tell(const void* word, std::size_t bytes, void* all);
  /// Waits until all previously queued groups are done. Returns false if stopped or revoked.
  bool wait_for_turn(std::uint64_t own) const;
  /// Waits until no group is queued, as NCCL waits for its kernels. Earlier work in the streams
  /// must end without help. Aborts the process after half a minute.
  void wait_for_device() const;
  /// The object remains, because graphs may still refer to the communicator: a few words each.
  void leave();
  bool is_over() const { return stopped || revoked; }

 private:
  bool hear(int from, std::size_t bytes, void* word) const;
};
