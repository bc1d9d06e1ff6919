// Stands between the transport and the device's stand-in of NCCL (tests/ptx_device/nccl), for ranks
// that are threads: counts the calls, notes what NCCL does not allow, and lets errors happen that a
// stand-in never has by itself. That the stand-in behaves as NCCL does is not proved by this: only
// that the transport does what is right by NCCL's documentation.
#pragma once

#include "comm/transport/nccl/api.h"

#include <string>
#include <vector>

namespace tersor::test {

/// While it lives, one at a time, `nccl::api()` is its table. In the end it aborts what is left.
class WatchedNccl {
 public:
  /// A version without ncclCommRevoke has none in its table.
  explicit WatchedNccl(int version = 22'809);
  ~WatchedNccl();
  WatchedNccl(const WatchedNccl&) = delete;
  WatchedNccl& operator=(const WatchedNccl&) = delete;

  nccl::Api& table() { return table_; }

  /// Makes the communicators of all ranks, which block, as a trainer does: on the device of the
  /// rank's number.
  std::vector<ncclComm_t> make_clique(int ranks);
  /// NCCL finds an error by itself.
  void break_down(ncclComm_t communicator, ncclResult_t error);
  /// The next group of this communicator blocks the host until it is revoked or aborted; one that
  /// is deaf, as long as it is not aborted.
  void block_next_group(ncclComm_t communicator);
  void block_next_group_deaf(ncclComm_t communicator);
  /// All registrations are refused.
  void refuse_registrations();

  bool is_revoked(ncclComm_t communicator) const;
  /// How often a function was called by all ranks, by its name in NCCL.
  int calls(const std::string& function) const;
  /// Communicators, and registrations of memory, that were made and not given back.
  int open_communicators() const;
  int open_registrations() const;
  /// What was done that NCCL does not allow: empty where all is well.
  std::vector<std::string> misuses() const;

 private:
  nccl::Api table_;
};

}  // namespace tersor::test
