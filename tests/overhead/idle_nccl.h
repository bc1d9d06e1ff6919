// NCCL functions with immediate success. All other ranks agree with this rank.
#pragma once

#include "comm/transport/nccl/api.h"

namespace tersor::idle {

/// Replaces NCCL while this object lives. Objects must not overlap. `nccl::api()` returns the
/// table.
class Nccl {
 public:
  Nccl();
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

 private:
  nccl::Api table_;
};

/// The communicator of rank 0 of `ranks` ranks.
ncclComm_t communicator_of(int ranks);

}  // namespace tersor::idle
