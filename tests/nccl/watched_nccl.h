// A layer between the transport and the NCCL replacement (tests/ptx_device/nccl), for ranks on
// threads. Counts calls, records misuse of NCCL, and injects errors. The tests do not prove equal
// behavior of the replacement and NCCL: only that the transport follows NCCL's documentation.
#pragma once

#include "comm/transport/nccl/api.h"

#include <string>
#include <vector>

namespace tersor::test {

/// While this object lives, `nccl::api()` returns its table. Only one object may exist. The
/// destructor aborts the remaining communicators.
class WatchedNccl {
 public:
  /// Versions without ncclCommRevoke have a table without this function.
  explicit WatchedNccl(int version = 22'809);
  ~WatchedNccl();
  WatchedNccl(const WatchedNccl&) = delete;
  WatchedNccl& operator=(const WatchedNccl&) = delete;

  nccl::Api& table() { return table_; }

  /// Creates blocking communicators of all ranks, like a trainer. Rank r uses device r.
  std::vector<ncclComm_t> make_clique(int ranks);
  /// Simulates an error found by NCCL.
  void break_down(ncclComm_t communicator, ncclResult_t error);
  /// The next group of this communicator blocks the host until the communicator is revoked or
  /// aborted. The deaf variant ignores revokes.
  void block_next_group(ncclComm_t communicator);
  void block_next_group_deaf(ncclComm_t communicator);
  /// Refuses all registrations.
  void refuse_registrations();

  bool is_revoked(ncclComm_t communicator) const;
  /// Number of calls of a NCCL function on all ranks.
  int calls(const std::string& function) const;
  /// Communicators and memory registrations created and not yet released.
  int open_communicators() const;
  int open_registrations() const;
  /// Misuses of NCCL; empty if none.
  std::vector<std::string> misuses() const;

 private:
  nccl::Api table_;
};

}  // namespace tersor::test
