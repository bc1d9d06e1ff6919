// A stand-in of NCCL for ranks that are threads, each with a device of its own: it fills the table
// of functions that the transport calls. What a rank sends is read when its stream comes to the
// operation, what it receives is written when all that it needs has come to it; streams run beside
// each other, and pause at random: so a missing event shows as wrong bytes. It refuses what NCCL
// refuses, and keeps a record of calls. That it behaves as NCCL does is not proved by this: only
// that the transport does what is right by NCCL's documentation.
#pragma once

#include "comm/transport/nccl/api.h"

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tersor::test {

/// NCCL while it lives, one at a time: `nccl::api()` is its table.
class FakeNccl {
 public:
  /// A version without ncclCommRevoke has none in its table.
  explicit FakeNccl(int version = 22'809);
  ~FakeNccl();
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

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
